"""What a change did: where answers part, how far each step's chances moved, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from cutaway.views.parts.drawing import Drawing, Span, cut, strip
from cutaway.views.parts.payload import Array

_AROUND = (3, 9)  # tokens before and behind the first difference that are shown


@dataclass(frozen=True)
class Spread:
    """A measurement made several times."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Median and range of some measurements, one at least."""
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Measured:
    """One side. Units: seconds, tokens, operations, bytes.

    first_text:   until a reader sees something.   per_token: from the first token to the last.
    rate:         tokens a second, of all copies that were answered at once.
    num_computed: tokens that went through the model.
    num_bytes:    of weights, keys and values, read and written for this answer.
    cache_bytes:  that it holds at its end.   weight_bytes: of the model.
    money:        for the seconds at a price per hour; None where none was told.
    """

    first_text: Spread
    per_token: Spread
    seconds: Spread
    rate: Spread
    num_computed: int
    flops: float
    num_bytes: float
    cache_bytes: int
    weight_bytes: int
    money: float | None


@dataclass(frozen=True)
class Divergence:
    """How far chances moved, step by step, with the recorded answer put in both mouths.

    of:       model: the softmax of its rows; draw: what the sampler drew from.
    kl:       nats, of the changed chances from the recorded ones; infinite where a token that
              could come cannot any more.
    distance: total variation, from 0 to 1.   num_same_top: steps with the same likeliest token.
    """

    of: Literal["model", "draw"]
    kl: Array
    distance: Array
    num_same_top: int


@dataclass(frozen=True)
class Comparison:
    """A recorded answer beside the same with one thing changed.

    first_difference: index of the first token that differs; None where none does.
    num_equal_rows:   rows of logits before that, and at it, with the same bits; of num_rows.
    is_as_served:     whether the recorded side gave what was served. Where its model runs as
                      modules that is another arithmetic, and it may not.
    is_repeatable:    whether each side gave the same tokens every time.
    are_whole:        whether both ended by themselves.
    """

    change: str
    first_difference: int | None
    recorded_token_ids: tuple[int, ...]
    changed_token_ids: tuple[int, ...]
    recorded_pieces: tuple[str, ...]
    changed_pieces: tuple[str, ...]
    recorded_text: str
    changed_text: str
    num_equal_rows: int
    num_rows: int
    is_as_served: bool
    is_repeatable: bool
    are_whole: bool
    divergence: Divergence | None
    recorded: Measured
    changed: Measured
    num_runs: int
    notes: tuple[str, ...]

    def draw(self) -> Drawing:
        """The comparison as lines of text: first difference, moved chances, measurements."""
        drawing = Drawing()
        drawing.line(Span(cut(f"{self.change}, and nothing else", 98), "strong"))
        self._texts(drawing)
        self._divergence(drawing)
        self._measures(drawing)
        for each in self._remarks():
            drawing.wrap(Span(word + " ", "dim") for word in each.split())
        return drawing

    def _texts(self, drawing: Drawing) -> None:
        most = max(len(self.recorded_pieces), len(self.changed_pieces))
        at = self.first_difference
        if at is None:
            drawing.line(Span(f"the very same {most} tokens", "good"))
        else:
            drawing.line(f"the first token that differs: {at}, of {most}")
        first = max(0, (at or 0) - _AROUND[0])
        past = first + sum(_AROUND) + 1
        for name, pieces in (("recorded", self.recorded_pieces), ("changed", self.changed_pieces)):
            spans: list[Span] = [Span(f"{name:<10}"), Span("\u2026" if first else "")]
            used = 11
            for index in range(first, min(past, len(pieces))):
                text = cut(pieces[index], 20) + "\u2502"
                if used + len(text) > 97:
                    break
                used += len(text)
                spans.append(Span(text, "plain" if at is None or index < at else "strong"))
            drawing.line(*spans, "" if past >= len(pieces) else "\u2026")

    def _divergence(self, drawing: Drawing) -> None:
        moved = self.divergence
        if moved is None:
            drawing.line(
                f"rows of logits up to there: {self.num_equal_rows} of {self.num_rows} have the "
                "same bits"
            )
            return
        what = "the model's chances" if moved.of == "model" else "the chances of the draw"
        count = len(moved.kl)
        finite = [float(each) for each in moved.kl if each != float("inf")]
        mean = sum(finite) / max(1, len(finite))
        worst = int(moved.distance.argmax()) if count else 0
        drawing.line(
            f"{what}, step by step on the recorded tokens ({count} steps): KL {mean:.4f} nats on "
            "average" + (f", infinite in {count - len(finite)}" if len(finite) < count else "")
        )
        shown = [float(each) for each in moved.distance[:90]]
        drawing.line(f"moved    {strip(shown, highest=1.0)}")
        drawing.line(
            f"most at step {worst}: {float(moved.distance[worst]):.1%} of the mass; the same "
            f"likeliest token in {moved.num_same_top} of {count} steps"
            + ("; steps past 90 are not drawn" if count > 90 else "")
        )

    def _measures(self, drawing: Drawing) -> None:
        left, right = self.recorded, self.changed
        rows = [
            ("first text, ms", *(_spread(each.first_text, 1e3) for each in (left, right))),
            ("per token, ms", *(_spread(each.per_token, 1e3) for each in (left, right))),
            ("in all, s", *(_spread(each.seconds, 1) for each in (left, right))),
            ("tokens a second", *(_spread(each.rate, 1) for each in (left, right))),
            ("tokens computed", *(f"{each.num_computed:,}" for each in (left, right))),
            ("operations, GFLOP", *(f"{each.flops / 1e9:,.2f}" for each in (left, right))),
            ("bytes moved, MiB", *(f"{each.num_bytes / 2**20:,.1f}" for each in (left, right))),
            ("its cache, KiB", *(f"{each.cache_bytes / 2**10:,.0f}" for each in (left, right))),
            ("weights, MiB", *(f"{each.weight_bytes / 2**20:,.1f}" for each in (left, right))),
        ]
        if left.money is not None and right.money is not None:
            rows.append(("money", f"{left.money:.3g}", f"{right.money:.3g}"))
        header = (f"{self.num_runs} runs: median (range)", "recorded", "changed")
        drawing.table(header, rows, sides="lrr")

    def _remarks(self) -> list[str]:
        remarks = list(self.notes)
        if not self.is_as_served:
            remarks.append(
                "the recorded side did not give the tokens that were served: it ran in another "
                "arithmetic, as the changed one did."
            )
        if not self.is_repeatable:
            remarks.append("runs of one side gave different tokens; the first of each is shown.")
        return remarks


def _spread(each: Spread, factor: float) -> str:
    values = (each.median * factor, each.least * factor, each.most * factor)
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)
