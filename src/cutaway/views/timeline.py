"""Timeline: where the time of an answer went, from its arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cutaway.core.errors import ReplayError
from cutaway.core.limits import quote
from cutaway.trace.ledger import part_of
from cutaway.trace.records import AnswerRecord, Part, StepRecord
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, bar, strip
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

_LABEL, _LANES = 10, WIDTH - 12  # columns of a lane's name, and of the lane


@dataclass(frozen=True)
class Phase:
    """Seconds that went into one thing, before the first token and after it."""

    name: str
    before: float
    after: float

    @property
    def seconds(self) -> float:
        """Seconds before and after the first token, together."""
        return self.before + self.after


@dataclass(frozen=True)
class Timeline:
    """Units: seconds since the request came; where encode_seconds is known, since before that.

    phases:   add up to the whole time.
    steps [S]: numbers of the engine's steps; began, computed, ended [S]: when.
    is_prefill [S]: 1 where known tokens were computed, be they the prompt's or, after a preemption,
              the answer's own.
    num_tokens, context [S]: of this answer in the step, and its length then.
    others, other_tokens [S]: how many answers beside it, and their tokens.
    tokens [N]: when each token of the answer was there.   gaps [N - 1]: between them.
    slowest:  indices of the slowest steps, the slowest first.
    num_told: tokens that another engine had told before this one went on, the first ones; they are
              there with the step that passed the seam. is_seam_exact: its row came out to the bit.
    is_device: steps ran on a device that works on while the host goes ahead: then sampling waits
              for it, and only their sum is known.
    """

    phases: tuple[Phase, ...]
    first_token: float
    total: float
    is_device: bool
    num_layers: int
    num_drafts: int
    steps: Array
    began: Array
    computed: Array
    ended: Array
    is_prefill: Array
    num_tokens: Array
    context: Array
    others: Array
    other_tokens: Array
    tokens: Array
    gaps: Array
    gap_p50: float
    gap_p99: float
    slowest: tuple[int, ...]
    num_told: int = 0
    is_seam_exact: bool = True

    def draw(self) -> Drawing:
        """The picture: phases, a lane of steps, tokens with their delays, and the slowest ones."""
        drawing = Drawing()
        drawing.line(
            "first token after ",
            Span(_ms(self.first_token), "strong"),
            f", all {len(self.tokens)} after ",
            Span(_ms(self.total), "strong"),
            f": {len(self.steps)} passes through {self.num_layers} layers"
            + (f", {self.num_drafts} drafts in them" if self.num_drafts else ""),
        )
        if self.num_told:
            drawing.line(
                Span(f"{self.num_told} tokens were told by another engine", "strong"),
                ", which ended; the row of the last of them came out ",
                "to the bit here" if self.is_seam_exact else "otherwise here",
            )
        self._draw_phases(drawing)
        self._draw_lanes(drawing)
        self._draw_tokens(drawing)
        self._draw_slowest(drawing)
        return drawing

    def _draw_phases(self, drawing: Drawing) -> None:
        width = WIDTH - 62
        rows = [
            (
                phase.name,
                _ms(phase.before),
                _ms(phase.after),
                f"{phase.seconds / self.total:.1%}",
                bar(phase.seconds / self.total, width),
            )
            for phase in self.phases
        ]
        header = ("", "to the first token", "after it", "share", "")
        drawing.table(header, rows, sides="lrrrl")

    def _draw_lanes(self, drawing: Drawing) -> None:
        """Time from left to right; a cell is as high as the share of it that was busy."""
        is_prefill = self.is_prefill > 0
        lanes = (
            ("prefill", self.began[is_prefill], self.ended[is_prefill]),
            ("decode", self.began[~is_prefill], self.ended[~is_prefill]),
            ("company", self.began[self.others > 0], self.ended[self.others > 0]),
        )
        drawing.line(Span(f"each column is {_ms(self.total / _LANES)}", "dim"))
        for name, began, ended in lanes:
            if len(began):
                share = _coverage(began, ended, self.total)
                drawing.line(Span(f"{name:<{_LABEL}}", "dim"), "\u2502", strip(share, highest=1.0))

    def _draw_tokens(self, drawing: Drawing) -> None:
        if not len(self.gaps):
            return
        cells = np.array_split(self.gaps, min(_LANES, len(self.gaps)))
        most = max(len(cell) for cell in cells)
        drawing.line(
            "between tokens ",
            Span(f"p50 {_ms(self.gap_p50)}, p99 {_ms(self.gap_p99)}", "strong"),
            f", {1 / self.gap_p50:.1f} tokens a second" if self.gap_p50 > 0 else "",
            Span(f"; the slowest of up to {most} in a column" if most > 1 else "", "dim"),
        )
        heights = strip([float(cell.max()) for cell in cells])
        drawing.line(Span(f"{'gap':<{_LABEL}}", "dim"), "\u2502", heights)

    def _draw_slowest(self, drawing: Drawing) -> None:
        rows = [
            (
                str(self.steps[index]),
                _ms(self.ended[index] - self.began[index]),
                f"{self.num_tokens[index]} at {self.context[index] - self.num_tokens[index]}",
                _company(int(self.others[index]), int(self.other_tokens[index])),
            )
            for index in self.slowest
        ]
        drawing.table(("slowest step", "time", "tokens of it", "company"), rows, sides="rrrl")
        if self.is_device:
            drawing.line(Span("the device works on while the host samples: one time", "dim"))


def _company(others: int, tokens: int) -> str:
    if not others:
        return "none"
    return f"{others} other answer{'s'[: others > 1]}, {tokens} token{'s'[: tokens > 1]}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 10 else f"{seconds:.2f} s"


def _coverage(began: Array, ended: Array, total: float) -> list[float]:
    """Of each of the lane's cells the share that spans cover."""
    edges = np.linspace(0.0, total, _LANES + 1)
    last, first = np.minimum.outer(edges[1:], ended), np.maximum.outer(edges[:-1], began)
    covered = np.clip(last - first, 0.0, None).sum(axis=1)
    return [float(each) for each in np.minimum(1.0, covered / (total / _LANES))]


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Timeline:
    """When each phase and step of the answer ran, from the ledger.

    Raises: ReplayError where the ledger has none of its steps.
    """
    del taken
    answer = subject.answer
    steps = [step for n in answer.steps if (step := subject.ledger.step(n)) is not None]
    if not steps:
        raise ReplayError(
            f"request {quote(answer.request.request_id)} has no steps in the ledger: it waits, or "
            "they were dropped. Raise ledger_bytes, or look at an answer sooner."
        )
    parts = [part_of(step, answer.number) for step in steps]
    queue = 0.0 if answer.timings is None else answer.timings.queue
    encode = subject.encode_seconds or 0.0
    zero = steps[0].began - queue - encode
    at_step = {step.number: step.ended - zero for step in steps}
    tokens = np.array([at_step[t.step] for t in answer.tokens if t.step in at_step], np.float32)
    gaps = np.diff(tokens)
    durations = [step.ended - step.began for step in steps]
    is_device = subject.build.device != "cpu"
    spans = np.array([(s.began, s.computed, s.ended) for s in steps]) - zero
    others = [(len(s.parts) - 1, sum(p.count for p in s.parts)) for s in steps]
    return Timeline(
        phases=_phases(subject, steps, zero, is_device=is_device),
        first_token=float(tokens[0]) if len(tokens) else float(spans[-1, 2]),
        total=float(spans[-1, 2]),
        is_device=is_device,
        num_layers=subject.facts.num_layers,
        num_drafts=sum(len(part.draft_token_ids) for part in parts),
        steps=np.array([step.number for step in steps], np.int64),
        began=spans[:, 0].astype(np.float32),
        computed=spans[:, 1].astype(np.float32),
        ended=spans[:, 2].astype(np.float32),
        is_prefill=np.array([_is_prefill(answer, part) for part in parts], np.uint8),
        num_tokens=np.array([part.count for part in parts], np.int64),
        context=np.array([part.end for part in parts], np.int64),
        others=np.array([number for number, _ in others], np.int64),
        other_tokens=np.array(
            [count - p.count for (_, count), p in zip(others, parts, strict=True)], np.int64
        ),
        tokens=tokens,
        gaps=gaps,
        gap_p50=float(np.percentile(gaps, 50)) if len(gaps) else 0.0,
        gap_p99=float(np.percentile(gaps, 99)) if len(gaps) else 0.0,
        slowest=tuple(int(i) for i in np.argsort(durations)[::-1][: query.top]),
        num_told=0 if answer.seam is None else answer.seam.num_tokens,
        is_seam_exact=answer.seam is None or answer.seam.is_exact,
    )


def _is_prefill(answer: AnswerRecord, part: Part) -> bool:
    num_known = part.count - len(part.draft_token_ids)
    return num_known > 1 or part.start < answer.num_prompt_tokens


def _phases(
    subject: Subject, steps: list[StepRecord], zero: float, *, is_device: bool
) -> tuple[Phase, ...]:
    """What the time went into; what is left over lies between the steps."""
    answer, encode = subject.answer, subject.encode_seconds
    timings = answer.timings
    first = answer.tokens[0].step if answer.tokens else steps[-1].number
    before = [step for step in steps if step.number <= first]
    after = [step for step in steps if step.number > first]
    detokenize = 0.0 if timings is None else timings.detokenize
    found: list[Phase] = []
    if encode is not None:
        found.append(Phase("template and tokenizer", encode, 0.0))
    found.append(Phase("queue", 0.0 if timings is None else timings.queue, 0.0))
    if is_device:
        found.append(Phase("forward and sampling", _sum(before, 0, 2), _sum(after, 0, 2)))
    else:
        found.append(Phase("forward", _sum(before, 0, 1), _sum(after, 0, 1)))
        # Texts are made while tokens are taken; of that only the sum over the answer is known. It
        # is a share of what followed each forward, as in the view of cost.
        ends = _sum(before, 1, 2), _sum(after, 1, 2)
        part = min(1.0, detokenize / sum(ends)) if sum(ends) > 0 else 0.0
        found.append(Phase("sampling", *((1 - part) * each for each in ends)))
        found.append(Phase("tokens to text", *(part * each for each in ends)))
    if len(answer.admissions) > 1:
        found.append(_preempted(answer, {step.number: step for step in steps}, first))
    ends = before[-1].ended - zero, steps[-1].ended - before[-1].ended
    left = (
        ends[0] - sum(phase.before for phase in found),
        ends[1] - sum(phase.after for phase in found),
    )
    found.append(Phase("between steps", *(max(0.0, each) for each in left)))
    return tuple(found)


def _sum(steps: list[StepRecord], start: int, end: int) -> float:
    times = [(step.began, step.computed, step.ended) for step in steps]
    return sum(each[end] - each[start] for each in times)


def _preempted(answer: AnswerRecord, steps: dict[int, StepRecord], first: int) -> Phase:
    """From the last step of an admission to the first of the next. first: of the first token."""
    times = [0.0, 0.0]
    for left, right in pairwise(answer.admissions):
        end, start = steps.get(left.steps[-1]), steps.get(right.steps[0])
        if end is not None and start is not None:
            times[start.number > first] += start.began - end.ended
    return Phase("preempted", times[0], times[1])


VIEW = View(
    "timeline",
    "stream",
    "Where did the time go?",
    probe,
    takes=("top",),
    is_content=False,
)
