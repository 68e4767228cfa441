"""Cost: what each stage and each token took of time, bytes and operations, and of money."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cutaway.blocks.weighed import model_work
from cutaway.core.errors import ReplayError
from cutaway.core.limits import quote
from cutaway.core.work import ModelWork
from cutaway.trace.cost import Rates, StageCost, StepCost, charge, fit_rates
from cutaway.trace.ledger import part_of
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, bar, strip
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

_LANE = WIDTH - 12
_HOUR = 3600.0
TEXT = "tokens to text"  # as the timeline calls it
_SPREAD = 256  # tokens between the shortest and the longest context before a slope means something


@dataclass(frozen=True)
class Share:
    """What one stage took. Units: seconds, bytes, operations, operations per byte."""

    name: str
    seconds: float
    num_bytes: float
    flops: float
    intensity: float


@dataclass(frozen=True)
class Mode:
    """Prefill or decode as a whole: tokens computed, and what they took."""

    name: str
    num_tokens: int
    seconds: float
    num_bytes: float
    flops: float
    intensity: float


@dataclass(frozen=True)
class AnswerCost:
    """An answer's share of the engine's busy time.

    token_seconds, token_bytes, token_flops [N]: of each token of the answer; the first one's are
              those of the prompt.
    stage_seconds, stage_bytes, stage_flops [S, N]: the same by stages, in the order of stages.
              Of the time of turning ids into text only the whole answer's is known: it is a share
              of what followed each forward.
    busy:     seconds of the steps that it was in; what others pay of them is not in its shares.
    price:    of this machine per hour; None where none was told, and then money is None.
    money:    for this answer.   per_million: for a million tokens: of prompts, of answers.
    slope:    seconds that a further 1,000 tokens of context add to a token, by the rates that
              were fitted; None where the recorded steps do not tell: their contexts are too much
              alike, or none took longer for its own.
    """

    stages: tuple[Share, ...]
    modes: tuple[Mode, ...]
    seconds: float
    busy: float
    num_cached: int
    slope: float | None
    token_seconds: Array
    token_bytes: Array
    token_flops: Array
    stage_seconds: Array
    stage_bytes: Array
    stage_flops: Array
    price: float | None
    money: float | None
    per_million: tuple[float, float] | None

    def draw(self) -> Drawing:
        """The picture: a table of stages, then what steps and tokens cost, in time and money."""
        drawing = Drawing()
        drawing.line(
            Span(f"{self.seconds * 1e3:.1f} ms", "strong"),
            f" of the engine's time, of {self.busy * 1e3:.1f} ms in which its steps ran"
            + (f"; {self.num_cached} prompt tokens were free" if self.num_cached else ""),
        )
        width = WIDTH - 64
        rows = [
            (
                stage.name,
                f"{stage.seconds * 1e3:.1f} ms",
                f"{stage.num_bytes / 1e6:.1f}",
                f"{stage.flops / 1e9:.3f}",
                f"{stage.intensity:.1f}",
                bar(stage.seconds / self.seconds, width),
            )
            for stage in self.stages
        ]
        header = ("", "time", "MB read", "GFLOP", "FLOP a byte", "")
        drawing.table(header, rows, sides="lrrrrl")
        self._draw_modes(drawing)
        self._draw_tokens(drawing)
        self._draw_money(drawing)
        return drawing

    def _draw_modes(self, drawing: Drawing) -> None:
        rows = [
            (
                mode.name,
                str(mode.num_tokens),
                f"{mode.seconds / mode.num_tokens * 1e3:.2f} ms",
                f"{mode.num_bytes / mode.seconds / 1e9:.2f}",
                f"{mode.flops / mode.seconds / 1e9:.1f}",
                f"{mode.intensity:.1f}",
            )
            for mode in self.modes
            if mode.num_tokens and mode.seconds > 0
        ]
        header = ("", "tokens", "each", "GB a second", "GFLOP a second", "FLOP a byte")
        drawing.table(header, rows, sides="lrrrrr")

    def _draw_tokens(self, drawing: Drawing) -> None:
        rest = self.token_seconds[1:]
        if not len(rest):
            return
        cells = [float(c.mean()) for c in np.array_split(rest, min(_LANE, len(rest)))]
        drawing.line(Span("each token ", "dim"), "\u2502", strip(cells))
        drawing.line(
            f"{rest.mean() * 1e3:.2f} ms a token; ",
            "its steps do not tell what a longer context adds"
            if self.slope is None
            else f"1,000 more tokens of context add {self.slope * 1e3:.2f} ms to each",
        )

    def _draw_money(self, drawing: Drawing) -> None:
        if self.price is None or self.money is None or self.per_million is None:
            drawing.line(Span("no price: tell what an hour of this machine costs (price)", "dim"))
            return
        prompts, answers = self.per_million
        drawing.line(
            f"at {self.price:g} an hour: ",
            Span(f"{self.money:.3g}", "strong"),
            f" for this answer; a million tokens: {prompts:.3g} in, {answers:.3g} out, "
            "0 from the cache",
        )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> AnswerCost:
    """What the answer cost, from the steps of the ledger.

    Raises: ReplayError where the ledger has none of its steps.
    """
    del taken
    answer, is_device = subject.answer, subject.build.device != "cpu"
    model = model_work(subject.transformer, subject.facts, subject.build.cache_dtype)
    rates = fit_rates(subject.ledger.steps, model, is_device=is_device)
    costs = _apart(subject, charge(subject.ledger, answer, model, rates, is_device=is_device))
    if not costs:
        raise ReplayError(
            f"request {quote(answer.request.request_id)} has no steps in the ledger: it waits, or "
            "they were dropped. Raise ledger_bytes, or look at an answer sooner."
        )
    stages = tuple(_added(each) for each in zip(*(cost.stages for cost in costs), strict=True))
    seconds = sum(cost.seconds for cost in costs)
    modes = _modes(subject, costs)
    money = None if query.price is None else query.price * seconds / _HOUR
    per_token = _per_token(subject, costs)
    return AnswerCost(
        stages=stages,
        modes=modes,
        seconds=seconds,
        busy=_busy(subject, costs),
        num_cached=answer.admissions[0].num_hit,
        slope=_slope(subject, model, rates),
        token_seconds=per_token[0].sum(axis=0),
        token_bytes=per_token[1].sum(axis=0),
        token_flops=per_token[2].sum(axis=0),
        stage_seconds=per_token[0],
        stage_bytes=per_token[1],
        stage_flops=per_token[2],
        price=query.price,
        money=money,
        per_million=None if query.price is None else _per_million(modes, query.price),
    )


def _apart(subject: Subject, costs: list[StepCost]) -> list[StepCost]:
    """What followed each forward as sampling and text, the two that the timeline tells apart."""
    timings = subject.answer.timings
    whole = sum(cost.stages[-1].seconds for cost in costs)
    part = min(1.0, timings.detokenize / whole) if timings is not None and whole > 0 else 0.0
    found: list[StepCost] = []
    for cost in costs:
        *rest, after = cost.stages
        text = replace(after, name=TEXT, seconds=part * after.seconds)
        after = replace(after, seconds=after.seconds - text.seconds)
        found.append(StepCost(cost.number, (*rest, after, text)))
    return found


def _added(stages: tuple[StageCost, ...]) -> Share:
    seconds, num_bytes = sum(s.seconds for s in stages), sum(s.num_bytes for s in stages)
    flops = sum(stage.flops for stage in stages)
    return Share(stages[0].name, seconds, num_bytes, flops, flops / num_bytes if num_bytes else 0.0)


def _busy(subject: Subject, costs: list[StepCost]) -> float:
    steps = [subject.ledger.step(cost.number) for cost in costs]
    return sum(step.ended - step.began for step in steps if step is not None)


def _modes(subject: Subject, costs: list[StepCost]) -> tuple[Mode, ...]:
    """Steps up to the first token, and those after it."""
    answer = subject.answer
    first = answer.tokens[0].step if answer.tokens else costs[-1].number
    modes: list[Mode] = []
    for name, chosen in (
        ("prefill", [cost for cost in costs if cost.number <= first]),
        ("decode", [cost for cost in costs if cost.number > first]),
    ):
        steps = [subject.ledger.step(cost.number) for cost in chosen]
        count = sum(part_of(step, answer.number).count for step in steps if step is not None)
        num_bytes, flops = sum(c.num_bytes for c in chosen), sum(c.flops for c in chosen)
        seconds = sum(cost.seconds for cost in chosen)
        intensity = flops / num_bytes if num_bytes else 0.0
        modes.append(Mode(name, count, seconds, num_bytes, flops, intensity))
    return tuple(modes)


def _slope(subject: Subject, model: ModelWork, rates: Rates) -> float | None:
    parts = [part for step in subject.ledger.steps for part in step.parts if part.count == 1]
    ends = [part.end for part in parts]
    if not ends or max(ends) - min(ends) < _SPREAD:
        return None
    at = subject.num_positions
    longer, here = model.alone(at + 999, at + 1000), model.alone(at - 1, at)
    return rates.predict_seconds(longer) - rates.predict_seconds(here) or None


def _per_token(subject: Subject, costs: list[StepCost]) -> tuple[Array, Array, Array]:
    """A step's cost is that of the tokens that it gave; of none, that of the next token.

    Shapes: seconds, bytes, operations [S, N].
    """
    answer = subject.answer
    num_stages = len(costs[0].stages)
    values = np.zeros((3, num_stages, len(answer.tokens)))
    given: dict[int, list[int]] = {}
    for index, token in enumerate(answer.tokens):
        given.setdefault(token.step, []).append(index)
    kept = np.zeros((3, num_stages))
    for cost in costs:
        kept += np.array([(s.seconds, s.num_bytes, s.flops) for s in cost.stages]).T
        if cost.number in given:
            indices = given[cost.number]
            values[:, :, indices] += kept[:, :, None] / len(indices)
            kept[:] = 0
    seconds, num_bytes, flops = values.astype(np.float32)
    return seconds, num_bytes, flops


def _per_million(modes: tuple[Mode, ...], price: float) -> tuple[float, float]:
    prompts, answers = (
        price / _HOUR * 1e6 * mode.seconds / mode.num_tokens if mode.num_tokens else 0.0
        for mode in modes
    )
    return prompts, answers


VIEW = View(
    "cost",
    "stream",
    "What did it cost?",
    probe,
    takes=("price",),
    is_content=False,
)
