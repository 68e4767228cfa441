"""What it takes to run a recorded answer again, known before anything is computed. Free of torch.

Faithful: by the very steps that computed it. The pages of a prefix hit are rebuilt by the steps of
the answers that left them, and the company of a step is there as dummies of the same lengths.
Invariant: alone and in other chunks, which is the same bits only where the order of summation does
not depend on rows, chunks and company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cutaway.cache.table import pages_for
from cutaway.core.errors import ReplayError
from cutaway.core.limits import quote
from cutaway.trace.ledger import Ledger, part_of
from cutaway.trace.records import AnswerRecord, Origin, Part, StepRecord

Level = Literal["shape-faithful", "invariant"]

_MOST_BORDERS = 6  # in a sentence
_MADE_UP = -1  # number of a step that was never served


@dataclass(frozen=True)
class DrawnToken:
    """Which row of a step gave which token of the answer."""

    row: int  # among the part's rows
    index: int  # among the answer's tokens


@dataclass(frozen=True)
class Run:
    """One step to repeat for the part of one answer.

    writer: whose pages are written.   drawn: the tokens of the target that it gave; none in steps
    that only rebuild a prefix.
    """

    step: StepRecord
    part: Part
    answer: AnswerRecord
    writer: Origin
    drawn: tuple[DrawnToken, ...] = ()

    @property
    def at(self) -> int:
        """Index of the part among the step's."""
        return self.step.parts.index(self.part)

    @property
    def num_tokens(self) -> int:
        """That go through the model, dummies included."""
        return sum(part.count for part in self.step.parts)


@dataclass(frozen=True)
class ReplayPlan:
    """Everything that a replay will do.

    tables:    page numbers of each admission, in the order of its tokens.
    num_pages: of each cache group, the scratch page included.
    num_tokens: that go through the model, dummies included.
    cause:     why it is not what was asked for, if it is not.
    borders:   in words, where the prompt is cut otherwise than serving cut it; None where alike.
    """

    answer: AnswerRecord
    level: Level
    runs: tuple[Run, ...]
    tables: Mapping[Origin, tuple[int, ...]]
    num_pages: int
    cause: str | None
    borders: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model in all runs, dummies included."""
        return sum(run.num_tokens for run in self.runs)

    @property
    def max_tokens(self) -> int:
        """Of one step."""
        return max(run.num_tokens for run in self.runs)

    @property
    def final(self) -> Origin:
        """The answer's last admission, whose pages hold all of its tokens."""
        return max(origin for origin in self.tables if origin.answer == self.answer.number)


def plan_replay(
    ledger: Ledger, answer: AnswerRecord, *, page_size: int, prefill_chunk: int, level: Level
) -> ReplayPlan:
    """Plan an answer's replay.

    Raises: ReplayError when the ledger has not all of the answer's own steps any more.
    """
    if not answer.tokens or not answer.is_whole:
        raise ReplayError(
            f"request {quote(answer.request.request_id)} cannot be run again: "
            + ("it has no tokens yet." if answer.is_whole else "some of its steps were dropped. ")
            + ("" if answer.is_whole else "Raise ledger_bytes, or look at an answer sooner.")
        )
    # What another engine computed of it has no steps here.
    if level == "invariant" or answer.seam is not None:
        return _invariant(ledger, answer, page_size=page_size, chunk=prefill_chunk)
    planner = _Planner(ledger, page_size=page_size, chunk=prefill_chunk)
    for number in range(len(answer.admissions)):
        planner.rebuild(answer, number, target=True)
    return ReplayPlan(
        answer=answer,
        level=level,
        runs=tuple(planner.runs),
        tables={origin: tuple(pages) for origin, pages in planner.tables.items()},
        num_pages=planner.num_pages,
        cause=planner.cause,
    )


def _invariant(ledger: Ledger, answer: AnswerRecord, *, page_size: int, chunk: int) -> ReplayPlan:
    """All tokens but the last in chunks, with a row wherever one was drawn from."""
    origin = Origin(answer.number, 0)
    num_stored = answer.num_prompt_tokens + len(answer.tokens) - 1
    first = answer.num_prompt_tokens - 1  # the place whose row gave the first token
    runs: list[Run] = []
    for start in range(0, num_stored, chunk):
        end = min(start + chunk, num_stored)
        begin = max(start, first)
        drawn = tuple(DrawnToken(p - begin, p - first) for p in range(begin, end))
        runs.append(_alone(answer, origin, start, end - start, drawn))
    num_pages = pages_for(num_stored, page_size)
    table = tuple(range(1, 1 + num_pages))
    return ReplayPlan(
        answer,
        "invariant",
        tuple(runs),
        {origin: table},
        1 + num_pages,
        None,
        _other_borders(ledger, answer, [run.part for run in runs]),
    )


def _other_borders(ledger: Ledger, answer: AnswerRecord, planned: Sequence[Part]) -> str | None:
    """Where the prompt is cut, beside where serving cut it; the end of a prefix hit cuts too.

    None as well where nothing was served: tokens that are put in the model's mouth.
    """
    if not answer.admissions:
        return None
    steps = (ledger.step(number) for number in answer.admissions[-1].steps)
    recorded = [part_of(step, answer.number) for step in steps if step is not None]
    ours, served = (
        sorted({part.start for part in parts if 0 < part.start < answer.num_prompt_tokens})
        for parts in (planned, recorded)
    )
    if ours == served:
        return None
    return f"the prompt is cut {_places(ours)}, serving cut it {_places(served)}"


def _places(borders: Sequence[int]) -> str:
    if not borders:
        return "nowhere"
    shown = ", ".join(map(str, borders[:_MOST_BORDERS]))
    more = len(borders) - _MOST_BORDERS
    return f"at {shown}" + (f" and {more} places more" if more > 0 else "")


def _alone(
    answer: AnswerRecord, writer: Origin, start: int, count: int, drawn: tuple[DrawnToken, ...] = ()
) -> Run:
    """A step of our own making, with nobody beside."""
    part = Part(answer.number, start, count, (), len(drawn))
    return Run(StepRecord(_MADE_UP, (part,), "", 0.0, 0.0, 0.0), part, answer, writer, drawn)


@dataclass(eq=False)
class _Planner:
    """Finds the steps that pages need, each once, in an order in which they can run."""

    ledger: Ledger
    page_size: int
    chunk: int
    runs: list[Run] = field(default_factory=list[Run])
    tables: dict[Origin, list[int]] = field(default_factory=dict[Origin, list[int]])
    num_pages: int = 1
    cause: str | None = None
    _num_done: dict[Origin, int] = field(default_factory=dict[Origin, int])

    def rebuild(
        self, answer: AnswerRecord, number: int, *, target: bool = False, num_tokens: int = 0
    ) -> list[int]:
        """Plan the steps of one admission: all of the target's, else until num_tokens are stored.

        Returns its pages.
        """
        origin, admission = Origin(answer.number, number), answer.admissions[number]
        if origin not in self.tables:
            self.tables[origin] = []
            self._take_hit(answer, origin)
        pages, done = self.tables[origin], self._num_done.get(origin, 0)
        drawn = _drawn_by_step(answer) if target else {}
        for step_number in admission.steps[done:]:
            step = self.ledger.step(step_number)
            assert step is not None, "an answer that is kept whole has its steps"
            part = part_of(step, answer.number)
            if not target and part.start >= num_tokens:
                break
            self._grow(pages, part.end)
            first = part.num_rows - 1 - len(part.draft_token_ids)  # of the rows drawn from
            given = tuple(DrawnToken(first + row, i) for row, i in drawn.get(step_number, ()))
            self.runs.append(Run(step, part, answer, origin, given))
            done += 1
        self._num_done[origin] = done
        return pages

    def _take_hit(self, answer: AnswerRecord, origin: Origin) -> None:
        """Share the pages of a hit with those that wrote them, as the engine did."""
        admission, pages = answer.admissions[origin.admission], self.tables[origin]
        writers = [None if o is None else self._whole(o) for o in admission.origins]
        if None in writers:
            self.cause = (
                f"prefix rebuilt under another plan: page {writers.index(None)} of a hit of "
                f"{admission.num_hit} tokens was written by an answer that is not kept any more"
            )
            self._grow(pages, admission.num_hit)
            for start in range(0, admission.num_hit, self.chunk):
                count = min(self.chunk, admission.num_hit - start)
                self.runs.append(_alone(answer, origin, start, count))
            return
        for index, (writer, wrote) in enumerate(zip(writers, admission.origins, strict=True)):
            assert writer is not None and wrote is not None, "asked above"
            # A page is shared when it is full: its writer's steps up to its end are enough.
            end = (index + 1) * self.page_size
            pages.append(self.rebuild(writer, wrote.admission, num_tokens=end)[index])

    def _whole(self, origin: Origin) -> AnswerRecord | None:
        answer = self.ledger.answer(origin.answer)
        return answer if answer is not None and answer.is_whole else None

    def _grow(self, pages: list[int], num_tokens: int) -> None:
        while len(pages) < pages_for(num_tokens, self.page_size):
            pages.append(self.num_pages)
            self.num_pages += 1


def _drawn_by_step(answer: AnswerRecord) -> dict[int, list[tuple[int, int]]]:
    """Of each step the tokens that it gave: which sampled row, and which token of the answer."""
    by_step: dict[int, list[tuple[int, int]]] = {}
    for index, token in enumerate(answer.tokens):
        by_step.setdefault(token.step, []).append((token.row, index))
    return by_step
