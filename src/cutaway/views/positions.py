"""Positions: how a token's place gets into the numbers, and that only distances count."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from cutaway.blocks.attention.opened import Openable, attention_weights, move_heads
from cutaway.blocks.embedding import LearnedPositions
from cutaway.blocks.positions import Frequencies, Plain, scaling_name
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, cut
from cutaway.views.parts.head_layers import QUERY, block_of, layer_of, met, position_of
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

SHIFTS = (1, 100, 10_000)  # positions further on, at which the same pair is scored again
DISTANCES = 64
_DIALS = "\u2191\u2197\u2192\u2198\u2193\u2199\u2190\u2196"  # clockwise from the top
_ROWS = 12  # pairs in the picture


@dataclass(frozen=True)
class Positions:
    """Letters: I pairs of entries that turn together.

    kind:       rotary (queries and keys turn), learned or sinusoidal (a vector is added to the
                embedding), or none.
    scaling:    of rotary frequencies, by name; settings: what it is told, in words.
    inverse:    [I], radians a position; 0 does not turn.   angles: [I], radians at the position,
                from 0 to a full turn.   wavelengths: [I], positions of a full turn; inf for none.
    stretch:    [I], how much slower than without the scaling.
    num_slow:   pairs that make no full turn within max_length positions.
    num_heads, num_groups: of this layer; 0 where nothing turns.
    head, key_position: a query at the position and a key, whose score is told as it is (score),
                and with both shifted by so many positions (shifts, shifted).
    by_distance: [64], what that score were with the key so many positions back, from 0.
    added_norm: of the vector that is added to the embedding, where one is.
    """

    kind: str
    layer: int
    position: int
    text: str
    max_length: int
    scaling: str
    settings: str
    inverse: Array
    angles: Array
    wavelengths: Array
    stretch: Array
    num_slow: int
    head: int
    num_heads: int
    num_groups: int
    key_position: int
    key_text: str
    score: float
    shifts: tuple[int, ...]
    shifted: Array
    by_distance: Array
    added_norm: float

    def draw(self) -> Drawing:
        """The picture: a row for each pair that turns, or what is added instead."""
        drawing = Drawing()
        if self.kind == "rotary":
            self._rotary(drawing)
        elif self.kind == "none":
            drawing.line(f"layer {self.layer} does not know positions: nothing turns or is added;")
            drawing.line("what it learns of order comes from the mask and from other layers")
        else:
            drawing.line(
                f"positions are {self.kind}: a vector of norm {self.added_norm:.3f} for position "
                f"{self.position} is added to the embedding of ",
                Span(self.text, "strong"),
            )
            drawing.line(Span("queries and keys do not turn", "dim"))
        return drawing

    def _rotary(self, drawing: Drawing) -> None:
        count = len(self.inverse)
        drawing.line(
            f"rotary: nothing is added; each query and key of layer {self.layer} turns in {count} "
            "pairs of entries"
        )
        drawing.line(Span(cut(f"frequencies: {self.scaling}, {self.settings}", WIDTH), "dim"))
        drawing.line(Span(self.text, "strong"), f" at {self.position}:")
        every = -(-count // _ROWS)
        rows = [
            (
                str(pair),
                f"{self.inverse[pair]:.3g}",
                f"{math.degrees(self.angles[pair]):.1f}",
                _DIALS[round(float(self.angles[pair]) / math.tau * 8) % 8],
                _positions(float(self.wavelengths[pair])),
                f"{self.stretch[pair]:.2f}x" if self.inverse[pair] else "",
            )
            for pair in range(0, count, every)
        ]
        header = ("pair", "radians a token", "angle now", "", "full turn after", "slowed")
        drawing.table(header, rows, sides="rrrlrr")
        if every > 1:
            drawing.line(Span(f"of {count} pairs one in {every} is shown", "dim"))
        drawing.line(
            f"{self.num_slow} of {count} pairs make no full turn within the model's "
            f"{self.max_length:,} positions"
        )
        self._distance(drawing)

    def _distance(self, drawing: Drawing) -> None:
        """That a score depends on the distance alone, and how it does."""
        far = self.position - self.key_position
        drawing.line(
            f"head {self.head}: query of ",
            Span(self.text, "strong"),
            " times key of ",
            Span(self.key_text, "strong"),
            f", {far} back: {self.score:.4f}",
        )
        for shift, score in zip(self.shifts, self.shifted.tolist(), strict=True):
            drawing.line(f"  both {shift:>6,} positions further on: {score:.4f}")
        least, most = float(self.by_distance.min()), float(self.by_distance.max())
        span = max(most - least, 1e-30)
        marks = "".join(
            "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"[round((each - least) / span * 7)]
            for each in self.by_distance.tolist()
        )
        drawing.line(f"the same key 0 to {DISTANCES - 1} back, from {least:.2f} to {most:.2f}:")
        drawing.line("  " + marks)


def wants(subject: Subject, query: Query) -> Wanted:
    """The query at the position and the layer's stored keys, where the layer turns them."""
    layer, position = layer_of(subject, query), position_of(subject, query)
    if block_of(subject, layer).attention.frequencies is None:
        return Wanted()
    layers = frozenset({layer})
    return Wanted(
        taps=frozenset({QUERY}), layers=layers, start=position, end=position + 1, stored=layers
    )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Positions:
    """How the place of one token enters one layer, and how its score follows the distance."""
    layer, position = layer_of(subject, query), position_of(subject, query)
    texts, frequencies = subject.texts(), block_of(subject, layer).attention.frequencies
    kind, norm = ("rotary", 0.0) if frequencies is not None else _added(subject, position)
    none = torch.zeros(0, dtype=torch.float64)
    inverse, plain, scores = none, none, _Scores(0, 0.0, none, none, 0, 0)
    if frequencies is not None:
        length = torch.tensor([subject.answer.max_length])
        inverse = frequencies.inverse(length)[0].cpu()
        plain = _unscaled(frequencies).inverse(length)[0].cpu()
        scores = _scores(subject, query, taken)
    wavelengths = math.tau / inverse.abs()  # inf where nothing turns
    return Positions(
        kind=kind,
        layer=layer,
        position=position,
        text=texts[position],
        max_length=subject.facts.max_length,
        scaling="none" if frequencies is None else scaling_name(frequencies),
        settings="" if frequencies is None else _settings(frequencies),
        inverse=_array(inverse),
        angles=_array((position * inverse).remainder(math.tau)),
        wavelengths=_array(wavelengths),
        stretch=_array((plain / inverse).abs()),
        num_slow=int((wavelengths > subject.facts.max_length).sum()),
        head=query.head or 0,
        num_heads=scores.num_heads,
        num_groups=scores.num_groups,
        key_position=scores.key,
        key_text=texts[scores.key],
        score=scores.score,
        shifts=SHIFTS if frequencies is not None else (),
        shifted=_array(scores.shifted),
        by_distance=_array(scores.by_distance),
        added_norm=norm,
    )


@dataclass(frozen=True)
class _Scores:
    """Products of one query with one key: where they stand, shifted together, and apart."""

    key: int
    score: float
    shifted: Tensor
    by_distance: Tensor
    num_heads: int
    num_groups: int


def _scores(subject: Subject, query: Query, taken: ReplayValues) -> _Scores:
    """Of the position's query and the key that it weighs most among other tokens."""
    layer, position, head = layer_of(subject, query), position_of(subject, query), query.head or 0
    seen = met(subject, taken, layer, start=position, end=position + 1, keys=position + 1).wide()
    weights = seen.open_rows(position, position + 1, head=head).weights[0, 0]
    key = int(weights[1:-1].argmax()) + 1 if position > 1 else 0
    attention, length = seen.attention, subject.answer.max_length
    one = seen.keys[key : key + 1].double()
    score = _products(attention, seen.query, one, head)[0, 0]
    shifts = torch.tensor(SHIFTS, device=one.device)
    back = torch.arange(DISTANCES, device=one.device)
    both = [
        move_heads(attention, each.expand(len(shifts), -1, -1), by=shifts, declared_length=length)
        for each in (seen.query, one)
    ]
    places = move_heads(
        attention,
        one.expand(DISTANCES, -1, -1),
        by=(position - key) - back,
        declared_length=length,
    )
    shifted = _products(attention, both[0], both[1], head).diagonal()
    by_distance = _products(attention, seen.query, places, head)[0]
    heads, groups = attention.num_heads, seen.keys.shape[1]
    return _Scores(key, float(score), shifted.cpu(), by_distance.cpu(), heads, groups)


def _products(attention: Openable, query: Tensor, keys: Tensor, head: int) -> Tensor:
    """Scaled scores of a head, nothing masked. Shapes: [Q, H, C], [K, G, C] -> [Q, K]."""
    positions = torch.zeros(len(query), dtype=torch.int64, device=query.device)
    opened = attention_weights(attention, query, keys, positions=positions, head=head)
    return opened.scaled[:, 0]


def _added(subject: Subject, position: int) -> tuple[str, float]:
    """What is added to the embedding: its kind and norm."""
    added = subject.transformer.embedding.positions
    if added is None:
        return "none", 0.0
    device = subject.build.device
    vector = added(torch.tensor([position], device=device))[0].double()
    kind = "learned" if isinstance(added, LearnedPositions) else "sinusoidal"
    return kind, float((vector * vector).sum().sqrt())


def _unscaled(frequencies: Frequencies) -> Plain:
    """The same pairs without their scaling."""
    size, base = (getattr(frequencies, name) for name in ("size", "base"))
    return Plain(size, base)


def _settings(frequencies: Frequencies) -> str:
    """The settings of a scaling in words; lists of factors by their ends."""
    words: list[str] = []
    for field in fields(frequencies):  # pyright: ignore[reportArgumentType] all are dataclasses
        value = getattr(frequencies, field.name)
        if isinstance(value, tuple):
            if value:
                words.append(f"{field.name} {value[0]:g} to {value[-1]:g}")
        elif not (field.name == "attention_factor" and value == 1.0):
            words.append(
                f"{field.name} {value:g}" if isinstance(value, float) else f"{field.name} {value}"
            )
    return ", ".join(words)


def _positions(wavelength: float) -> str:
    return "never" if math.isinf(wavelength) else f"{wavelength:,.1f}"


def _array(values: Tensor) -> Array:
    return values.float().cpu().numpy()


VIEW = View(
    "positions",
    "blocks",
    "How does a token's place get into the numbers?",
    probe,
    takes=("position", "layer", "head"),
    wants=wants,
)
