"""Attention's arithmetic: from one query times every key to the weighted sum of values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.blocks.attention.opened import of_head
from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.head_layers import MIXED, QUERY, layer_of, met, position_of, window_of
from cutaway.views.parts.payload import Array
from cutaway.views.parts.projection import Projection, projection_of, tap_below
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

TOLERANCE = 1e-5  # of the largest entry of what was mixed, or what its dtype can tell apart
MOST_LATER = 32  # keys behind the query that are told; all are masked
MOST_KEYS = 8192  # that are told; of more the heaviest


@dataclass(frozen=True)
class Arithmetic:
    """One query of one head, through softmax(q k / sqrt(C)) v. Letters: K keys, C head size.

    num_heads, num_groups: of this layer; group is whose keys and values the head reads.
    products:  [K], query times key.   scaled: [K], times softmax_scale, below cap if there is one.
    masked:    [K], -inf (None in JSON) where the query must not look.   weights: [K].
    contributions: [K], norm of weight times value: what each key brings to the sum.
    sink:      weight of a learned score that brings no value.
    query, key, value, mixed: [C], of the position; latent attention has the compressed row for
               value and mixed, and the row with the rotary key for key.
    entropy, entropy_unscaled: of the weights in bits, and had nothing been scaled.
    difference: largest one between the weighted sum and what the engine mixed; is_equal: at most
               1e-5 of its largest entry, or what activations' dtype can tell apart.
    keys:      [K], positions of those told: all up to the query's, or the 8,192 heaviest of more;
               and up to 32 behind it, which it would have looked at.
    num_left_out, weight_left_out: keys that are not told, and their weight together.
    top:       how many keys the picture shows.
    projection: the product that made the query; None where it was made in another way.
    """

    layer: int
    head: int
    group: int
    num_heads: int
    num_groups: int
    position: int
    text: str
    keys: Array
    tokens: tuple[str, ...]
    num_left_out: int
    weight_left_out: float
    softmax_scale: float
    cap: float | None
    window: int | None
    products: Array
    scaled: Array
    masked: Array
    weights: Array
    contributions: Array
    sink: float
    query: Array
    key: Array
    value: Array
    mixed: Array
    entropy: float
    entropy_unscaled: float
    difference: float
    is_equal: bool
    top: int
    projection: Projection | None

    def draw(self) -> Drawing:
        """The picture: vectors, products with each key, weights and what they add up to."""
        drawing = Drawing()
        drawing.line(
            f"layer {self.layer}, head {self.head}: the query of ",
            Span(self.text, "strong"),
            f" at {self.position} meets the keys of group {self.group}",
        )
        for name, words in (
            ("query", "what it looks for"),
            ("key", "what it offers to others"),
            ("value", "what it hands over"),
        ):
            self._vector(drawing, name, words)
        self._projection(drawing)
        capped = "" if self.cap is None else f", squeezed between -{self.cap:g} and {self.cap:g}"
        root = len(self.query) ** -0.5
        usual = f" = 1/sqrt({len(self.query)})" if math.isclose(root, self.softmax_scale) else ""
        drawing.line(
            Span(
                f"scaled: times {self.softmax_scale:.4g}{usual}{capped}; softmax: shares that "
                "add up to 1",
                "dim",
            )
        )
        self._table(drawing)
        self._end(drawing)
        return drawing

    def _vector(self, drawing: Drawing, name: str, words: str) -> None:
        values: Array = getattr(self, name)
        first = " ".join(f"{each:+.2f}" for each in values[:6].tolist())
        norm = math.sqrt(float((values * values).sum()))
        drawing.line(
            f"  {name:<6}",
            Span(f"{words:<26}", "dim"),
            f"{first} ... {len(values)} numbers, ",
            f"norm {norm:.2f}",
        )

    def _projection(self, drawing: Drawing) -> None:
        """The query's largest number, multiplied out."""
        told = self.projection
        if told is None:
            return
        terms = zip(told.inputs[:2].tolist(), told.weights[:2].tolist(), strict=True)
        words = " + ".join(f"{x:.2f} x {w:.2f}" for x, w in terms)
        drawing.line(
            Span(
                f"  its number {told.entry} before it turns: {words} + ..., {told.width:,} "
                f"products, {told.value:.2f}",
                "dim",
            )
        )

    def _table(self, drawing: Drawing) -> None:
        """The heaviest keys in the order of the text, and the first that is masked."""
        seen = int((self.keys <= self.position).sum())
        order = [int(at) for at in (-self.weights[:seen]).argsort(kind="stable")[: self.top]]
        later = [seen] if seen < len(self.tokens) else []
        most = max(float(self.contributions.max()), 1e-30)
        rows = [
            (
                str(self.keys[at]),
                cut(self.tokens[at], 18),
                f"{self.products[at]:.3f}",
                f"{self.scaled[at]:.3f}",
                "-inf" if self.masked[at] == -math.inf else f"{self.masked[at]:.3f}",
                f"{self.weights[at]:.4f}",
                f"{self.contributions[at]:.3f}",
                bar(float(self.contributions[at]) / most, 16),
            )
            for at in [*sorted(order), *later]
        ]
        header = ("at", "token", "q.k", "scaled", "masked", "softmax", "|weight v|", "")
        drawing.table(header, rows, sides="rlrrrrrl")
        others = self.position + 1 - len(order)
        if others:
            rest = max(0.0, 1 - self.sink - float(self.weights[order].sum()))
            drawing.line(
                Span(f"{others:,} other keys not shown; weight {rest:.4f} together", "dim")
            )
        if len(self.tokens) > seen:
            words = f"{len(self.tokens) - seen:,} later tokens are masked: -inf becomes weight 0"
            drawing.line(Span(words, "dim"))

    def _end(self, drawing: Drawing) -> None:
        if self.sink > 0:
            drawing.line(f"the head's sink takes {self.sink:.4f} and brings no value")
        drawing.line(
            f"the weights look at {2**self.entropy:.1f} tokens' worth ({self.entropy:.2f} bits); "
            f"unscaled it would be {2**self.entropy_unscaled:.1f}"
        )
        norm = math.sqrt(float((self.mixed * self.mixed).sum()))
        words = "equals" if self.is_equal else "is not"
        drawing.line(
            f"weighted sum: norm {norm:.3f}; it {words} what the engine computed, largest "
            f"difference {self.difference:.1e}"
        )


def wants(subject: Subject, query: Query) -> Wanted:
    """The query at the position, what the layer mixed there, and what it stored up to it."""
    position, layer = position_of(subject, query), layer_of(subject, query)
    layers = frozenset({layer})
    tap, lower = tap_below(layer)
    return Wanted(
        taps=frozenset({QUERY, MIXED, tap}),
        layers=layers if lower is None else layers | {lower},
        start=position,
        end=min(position + 1 + MOST_LATER, subject.num_positions),
        stored=layers,
    )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Arithmetic:
    """One query's scores and weights, computed again in float64, beside what was served."""
    layer, position, head = layer_of(subject, query), position_of(subject, query), query.head or 0
    end = wants(subject, query).end
    seen = met(subject, taken, layer, start=position, end=position + 1, keys=end).wide()
    opened = seen.open_rows(position, position + 1, head=head)
    products, scaled, weights = (
        each[0, 0] for each in (opened.products, opened.scaled, opened.weights)
    )
    key, value = (
        of_head(seen.attention, each, head)[:, 0].double() for each in (seen.keys, seen.values)
    )
    mixed = taken.value(MIXED, layer, start=position, end=position + 1)[0, head].double()
    scoring, groups = seen.attention.scoring, seen.keys.shape[1]
    difference = float((weights @ value - mixed).abs().max())
    dtype: torch.dtype = getattr(torch, subject.build.dtype)
    tolerance = max(TOLERANCE, torch.finfo(dtype).eps) * float(mixed.abs().max())
    keys, texts = _told(weights, position), subject.texts()
    contributions = weights * (value * value).sum(dim=-1).sqrt()
    return Arithmetic(
        layer=layer,
        head=head,
        group=head * groups // seen.attention.num_heads,
        num_heads=seen.attention.num_heads,
        num_groups=groups,
        position=position,
        text=texts[position],
        keys=keys.cpu().numpy(),
        tokens=tuple(texts[int(each)] for each in keys),
        num_left_out=end - len(keys),
        weight_left_out=max(0.0, float(weights.sum() - weights[keys].sum())),
        softmax_scale=scoring.softmax_scale,
        cap=scoring.cap,
        window=window_of(scoring.extent),
        products=_array(products[keys]),
        scaled=_array(scaled[keys]),
        masked=_array(scaled.masked_fill(~opened.visible[0], -torch.inf)[keys]),
        weights=_array(weights[keys]),
        contributions=_array(contributions[keys]),
        sink=float(opened.sink[0, 0]),
        query=_array(seen.query[0][head]),
        key=_array(key[position]),
        value=_array(value[position]),
        mixed=_array(mixed),
        entropy=_bits(weights),
        entropy_unscaled=_bits(products.masked_fill(~opened.visible[0], -torch.inf).softmax(-1)),
        difference=difference,
        is_equal=difference <= tolerance,
        top=query.top,
        projection=projection_of(subject, taken, layer=layer, head=head, position=position),
    )


def _told(weights: Tensor, position: int) -> Tensor:
    """Keys up to the position, the heaviest where they are too many, and those behind it."""
    end = position + 1
    keys = torch.arange(len(weights), device=weights.device)
    if end <= MOST_KEYS:
        return keys
    heaviest = weights[:end].topk(MOST_KEYS).indices.sort().values
    return torch.cat((heaviest, keys[end:]))


def _bits(weights: Tensor) -> float:
    return -float((weights * weights.clamp_min(1e-300).log2()).sum())


def _array(values: Tensor) -> Array:
    return values.float().cpu().numpy()


VIEW = View(
    "arithmetic",
    "blocks",
    "How do a query, keys and values become one vector?",
    probe,
    takes=("position", "layer", "head", "top"),
    wants=wants,
)
