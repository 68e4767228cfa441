"""Sampling: what each filter did to one row, in order, and the draw that gave the token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import cast

from torch import Tensor

from cutaway.core.limits import DRAW_SETTINGS
from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import DrawEffect, outcomes, trace
from cutaway.sampling.largest import largest
from cutaway.sampling.rejection import purpose_of
from cutaway.sampling.uniform import Purpose
from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.query import Query
from cutaway.views.parts.repetition import SIZES, Repeats, count_repeated, repeats_of
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

_NEUTRAL = SamplingParams()
# Each starts from neutral settings.
STRATEGIES: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0.0},
    "as it is": {},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1.5": {"temperature": 1.5},
    "top_k 40": {"top_k": 40},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
}


@dataclass(frozen=True)
class Effect:
    """The row after one stage; the first, logits, is the row as it came.

    num_kept: tokens that can still be drawn.   kept_mass: of the mass before, what the stage left;
    1 for a stage that gives new logits instead.
    probabilities: of RowSampling.watched.
    """

    name: str
    num_kept: int
    kept_mass: float
    top_token_id: int
    top_probability: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class RowDraw:
    """The draw: tokens lie one after another by id, each as wide as its weight.

    seed: as text: it has 64 bits, and a number of JavaScript holds 53.
    u:    a number in [0, 2^32), made of seed, choice and position (docs/randomness.md).
    target: floor(u * total / 2^32); low, high: of the token, low <= target < high.
    """

    seed: str
    choice: int
    position: int
    u: int
    total: int
    target: int
    low: int
    high: int


@dataclass(frozen=True)
class Strategy:
    """What the same row and the same random number give under other settings.

    probabilities: of RowSampling.watched under them; 0 where one was dropped.
    """

    name: str
    token_id: int
    text: str
    probability: float
    num_kept: int
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class RowSampling:
    """One token of the answer, drawn again from the recorded row.

    settings: those that are not neutral.
    watched:  ids of the likeliest and the taken token; watched_texts.
    draw_effect: None where the likeliest is taken.
    redrawn:  the token that the row gives now; is_same: whether the record has it.
    is_guess: whether rejection decided the token, a guess or what came in its place: then the draw
              shown here is that of plain decoding, which was not taken.
    repetition: of the answer up to this token, by size; said_again: how long a stretch that ends
              with it stood there before.
    """

    token: int
    settings: dict[str, float]
    watched: tuple[int, ...]
    watched_texts: tuple[str, ...]
    effects: tuple[Effect, ...]
    draw_effect: RowDraw | None
    recorded: int
    redrawn: int
    is_same: bool
    is_guess: bool
    strategies: tuple[Strategy, ...]
    repetition: tuple[Repeats, ...]
    said_again: int

    def draw(self) -> Drawing:
        """The picture: the row after each filter, the draw, and other settings beside it."""
        drawing = Drawing()
        settings = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        words = f"token {self.token} of the answer; settings: {settings or 'all neutral'}"
        drawing.wrap(Span(word + " ") for word in words.split())
        self._stages(drawing)
        self._watched(drawing)
        self._draw(drawing)
        drawing.line()
        drawing.line("the same row and random number under other settings")
        drawing.table(
            ("settings", "token", "its share", "could be drawn"),
            [
                (each.name, cut(each.text, 24), f"{each.probability:.1%}", f"{each.num_kept:,}")
                for each in self.strategies
            ],
            sides="llrr",
        )
        self._repetition(drawing)
        return drawing

    def _stages(self, drawing: Drawing) -> None:
        rows: list[tuple[str, ...]] = []
        mass = 1.0
        for effect in self.effects:
            mass *= effect.kept_mass
            rows.append(
                (
                    effect.name,
                    f"{effect.num_kept:,}",
                    f"{effect.kept_mass:.1%}",
                    bar(mass, 30),
                    f"{effect.top_probability:.1%}",
                )
            )
        header = ("stage", "can be drawn", "of the mass", "mass left", "likeliest has")
        drawing.table(header, rows, sides="lrrlr")

    def _watched(self, drawing: Drawing) -> None:
        drawing.line()
        kept = [[share > 0 for share in effect.probabilities] for effect in self.effects]
        rows: list[tuple[Span | str, ...]] = []
        for index, (token_id, text) in enumerate(
            zip(self.watched, self.watched_texts, strict=True)
        ):
            is_taken = token_id == self.recorded
            shares = [
                f"{effect.probabilities[index]:.1%}" if kept[at][index] else "-"
                for at, effect in enumerate(self.effects)
            ]
            mark = Span("taken", "good") if is_taken else ""
            rows.append((Span(cut(text, 12), "strong" if is_taken else "plain"), *shares, mark))
        width = 11 if len(self.effects) <= 6 else 8  # nine stages must fit side by side
        names = (cut(effect.name, width) for effect in self.effects)
        drawing.table(("token", *names, ""), rows, sides="l" + "r" * len(self.effects) + "l")

    def _repetition(self, drawing: Drawing) -> None:
        drawing.line()
        drawing.line(f"what the first {self.token + 1} tokens say again")
        rows = [
            (str(each.size), f"{each.num_again:,} of {each.num_all:,}", f"{each.share:.1%}")
            for each in self.repetition
        ]
        drawing.table(("tokens in a row", "not for the first time", "share"), rows, sides="rrr")
        words = "is new" if not self.said_again else f"ends {self.said_again} that stood before"
        drawing.line(f"this token {words}")

    def _draw(self, drawing: Drawing) -> None:
        same = Span(f"not the record's token {self.recorded}", "bad")
        if self.is_same:
            same = Span("the very token of the record", "good")
        elif self.is_guess:
            same = Span("not taken: a guess was verified by rejection (--view speculation)", "dim")
        drawn = self.draw_effect
        if drawn is None:
            drawing.line("no draw: the largest logit is taken; ", same)
            return
        drawing.line(
            f"the draw: u = {drawn.u} of 2^32 = {drawn.u / 2**32:.6f}, from seed {drawn.seed}, "
            f"choice {drawn.choice}, position {drawn.position}"
        )
        start, end = drawn.low / drawn.total, drawn.high / drawn.total
        drawing.line(
            f"all weights in order of ids: this token has {start:.6f} to {end:.6f}; ", same
        )
        at = min(59, int(60 * drawn.target / drawn.total))
        first, past = int(60 * start), max(int(60 * start) + 1, round(60 * end))
        ruler = "".join(
            "\u25bc" if i == at else "\u2588" if first <= i < past else "\u00b7" for i in range(60)
        )
        drawing.line(f"0 {ruler} 1   \u25bc u, \u2588 the token")


def wants(subject: Subject, query: Query) -> Wanted:
    """The row of logits of the chosen token."""
    del subject
    return Wanted(rows=frozenset((query.token or 0,)))


def walks(subject: Subject, query: Query) -> int:
    """The row at each stage, and under each strategy."""
    del query
    return 110 * subject.facts.vocab_size


def probe(subject: Subject, query: Query, taken: ReplayValues) -> RowSampling:
    """Filter and draw the chosen token's row again, and try other settings on it."""
    token = query.token or 0
    logits, row = taken.rows[token], subject.row(token)
    recorded = subject.answer.tokens[token].token_id
    said = [each.token_id for each in subject.answer.tokens[: token + 1]]
    watched = _watched(logits, recorded, top=query.top)
    traced = trace(logits, row, watched=watched)
    redrawn = traced.effects[-1].top_token_id if traced.draw is None else traced.draw.token_id
    return RowSampling(
        token=token,
        settings=_settings(row),
        watched=watched,
        watched_texts=tuple(subject.text(each) for each in watched),
        effects=tuple(
            Effect(
                name=each.name,
                num_kept=each.num_kept,
                kept_mass=each.kept_mass,
                top_token_id=each.top_token_id,
                top_probability=each.top_probability,
                probabilities=each.watched,
            )
            for each in traced.effects
        ),
        draw_effect=None if traced.draw is None else _drawn(row, traced.draw),
        recorded=recorded,
        redrawn=redrawn,
        is_same=redrawn == recorded,
        is_guess=purpose_of(subject.answer.tokens[token].u, row) is not Purpose.DRAW,
        strategies=_strategies(subject, logits, row, watched),
        repetition=tuple(repeats_of(said, size) for size in SIZES),
        said_again=count_repeated(said),
    )


def _watched(logits: Tensor, recorded: int, *, top: int) -> tuple[int, ...]:
    likeliest = cast("list[int]", largest(logits[None], min(top, len(logits)))[0].tolist())
    return tuple(dict.fromkeys((*likeliest, recorded)))


def _settings(row: SamplerRow) -> dict[str, float]:
    own = {each.name: getattr(row.params, each.name) for each in fields(row.params)}
    return {name: own[name] for name in DRAW_SETTINGS if own[name] != getattr(_NEUTRAL, name)}


def _drawn(row: SamplerRow, effect: DrawEffect) -> RowDraw:
    return RowDraw(
        seed=str(row.seed),
        choice=row.choice,
        position=row.position,
        u=effect.u,
        total=effect.total,
        target=effect.target,
        low=effect.cumulative - effect.weight,
        high=effect.cumulative,
    )


def _strategies(
    subject: Subject, logits: Tensor, row: SamplerRow, watched: tuple[int, ...]
) -> tuple[Strategy, ...]:
    neutral = {each: getattr(_NEUTRAL, each) for each in DRAW_SETTINGS}
    rows = [
        replace(row, params=replace(row.params, **{**neutral, **settings}))
        for settings in STRATEGIES.values()
    ]
    return tuple(
        Strategy(
            name=name,
            token_id=each.token_id,
            text=subject.text(each.token_id),
            probability=each.probability,
            num_kept=each.num_kept,
            probabilities=each.watched,
        )
        for name, each in zip(STRATEGIES, outcomes(logits, rows, watched=watched), strict=True)
    )


VIEW = View(
    "sampling",
    "sampling",
    "How was this token chosen among all?",
    probe,
    takes=("token", "top"),
    wants=wants,
    is_by_step=True,
    walks=walks,
)
