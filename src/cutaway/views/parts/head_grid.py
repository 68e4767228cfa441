"""All attention heads at once: what each mostly looks at, in five numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cutaway.blocks.attention.opened import AttentionTerms
from cutaway.host.turns import breathe
from cutaway.views.parts.drawing import Drawing, Span, strip
from cutaway.views.parts.head_layers import (
    GATE,
    MIXED,
    QUERY,
    block_of,
    layer_of,
    met,
    opened_layers,
    position_of,
    window_of,
)
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject

MOST_QUERIES = 128  # that numbers are means of
ROW_KEYS = 256  # of the telling head's row: the latest
MOST_STORED = 2**27  # numbers of keys and values, which decides how many layers are looked at

_KINDS = (
    ("first", "f", "the first token, where nothing is needed"),
    ("previous", "p", "the token before"),
    ("self", "s", "itself"),
    ("induction", "i", "what came after the same token earlier"),
)
_MOSTLY, _PARTLY = 0.5, 0.25
_WIDTH = 42  # heads side by side


@dataclass(frozen=True)
class TellingRow:
    """The last query's weights in the head that gives most to one earlier word.

    A word is neither the first token nor the one before the query, no control token, no mere sign.
    tokens, weights: of the keys from start up to the query itself, which is the last of them.
    """

    layer: int
    head: int
    start: int
    tokens: tuple[str, ...]
    weights: Array


@dataclass(frozen=True)
class HeadGrid:
    """Statistics of every head of some layers, each the mean over the same queries.

    Letters: M layers, H heads; arrays are [M, H].
    layers:    that were looked at, of num_layers; windows of each, None where it sees all.
    groups:    of keys and values that the heads of a layer share.
    start, end: positions of the queries. The first position of all is left out: it sees itself.
    entropy:   of a query's weights, in bits; 0 looks at one token.
    first, previous, self: mean weight of the first token, of the one before, of its own.
    induction: mean weight of the token behind the last earlier occurrence of the same token, over
               num_repeated queries that have one.
    sink:      mean weight of a learned score, in models that have it.
    added:     mean norm of what the head adds to the stream, before a norm behind attention.
    telling:   the last query's row in the head that tells most; None where no word stands before.
    """

    layers: tuple[int, ...]
    num_layers: int
    windows: tuple[int | None, ...]
    groups: tuple[int, ...]
    start: int
    end: int
    num_repeated: int
    entropy: Array
    first: Array
    previous: Array
    self: Array
    induction: Array
    sink: Array
    added: Array
    telling: TellingRow | None

    def draw(self) -> Drawing:
        """The picture: one row per head of a layer, or a grid of all layers and their heads."""
        drawing = Drawing()
        drawing.line(
            f"means over positions {self.start} to {self.end - 1}; "
            f"{self.num_repeated} of them repeat an earlier token"
        )
        if len(self.layers) == 1:
            self._layer(drawing)
        else:
            self._grid(drawing)
            self._strongest(drawing)
        self._rest(drawing)
        return drawing

    def _layer(self, drawing: Drawing) -> None:
        count, groups = self.entropy.shape[1], self.groups[0]
        window = self.windows[0]
        seen = "every earlier token" if window is None else f"{window:,} tokens"
        drawing.line(
            Span(f"layer {self.layers[0]}: {count} heads, {groups} groups of keys and values, "),
            Span(f"seeing {seen}", "dim"),
        )
        rows = [
            (
                str(head),
                str(head * groups // count),
                f"{self.entropy[0, head]:.2f}",
                *(f"{getattr(self, name)[0, head]:.3f}" for name, _, _ in _KINDS),
                f"{self.sink[0, head]:.3f}",
                f"{self.added[0, head]:.2f}",
            )
            for head in range(count)
        ]
        names = ("head", "group", "entropy (bits)", *(n for n, _, _ in _KINDS), "sink", "adds")
        drawing.table(names, rows, sides="r" * len(names))

    def _grid(self, drawing: Drawing) -> None:
        for _, letter, words in _KINDS:
            drawing.line(Span(f"  {letter.upper()} mostly, {letter} partly: {words}", "dim"))
        drawing.line(Span("  \u00b7 spread; bars: entropy, higher looks at more tokens", "dim"))
        count = min(self.entropy.shape[1], _WIDTH)
        highest = float(self.entropy.max())
        drawing.line(Span(f"layer  {'heads'.ljust(count)}   entropy", "dim"))
        for row, layer in enumerate(self.layers):
            letters = "".join(self._letter(row, head) for head in range(count))
            entropies = strip(self.entropy[row, :count].tolist(), highest=highest)
            window = self.windows[row]
            note = "" if window is None else f"   sees {window:,} tokens"
            drawing.line(f"{layer:>5}  {letters}   {entropies}", Span(note, "dim"))

    def _rest(self, drawing: Drawing) -> None:
        """What is left out of the picture."""
        left_out: list[str] = []
        if len(self.layers) < self.num_layers:
            left_out.append(f"{self.num_layers - len(self.layers)} of {self.num_layers} layers")
        if len(self.layers) > 1 and self.entropy.shape[1] > _WIDTH:
            left_out.append(f"heads from {_WIDTH} on")
        if left_out:
            words = " and ".join(left_out)
            drawing.line(Span(f"not shown: {words}; --layer N shows one layer", "dim"))

    def _letter(self, row: int, head: int) -> str:
        values = [(float(getattr(self, name)[row, head]), letter) for name, letter, _ in _KINDS]
        most, letter = max(values)
        if most >= _MOSTLY:
            return letter.upper()
        return letter if most >= _PARTLY else "\u00b7"

    def _strongest(self, drawing: Drawing) -> None:
        """The heads in which each kind is strongest, as LAYER.HEAD."""
        for name in ("added", *(name for name, _, _ in _KINDS)):
            values: Array = getattr(self, name)
            order = np.argsort(-values, axis=None, kind="stable")[:6]
            places = [divmod(int(at), values.shape[1]) for at in order]
            found = (f"{self.layers[m]}.{head} {values[m, head]:.2f}" for m, head in places)
            label = "adds most" if name == "added" else f"most {name}"
            drawing.line(f"{label:<15}", Span("   ".join(found)))


def wants(subject: Subject, query: Query) -> Wanted:
    """Queries, mixed values and gates of the layers, and what these layers stored."""
    start, end = _queries(subject, query)
    start = 0 if end <= MOST_QUERIES else start  # the view of one head is then here already
    layers = frozenset(_layers(subject, query))
    return Wanted(
        taps=frozenset({QUERY, MIXED, GATE}),
        layers=layers,
        start=start,
        end=end,
        stored=layers,
    )


def flops(subject: Subject, query: Query) -> int:
    """Of each query's products with every key before it, and of what each head adds."""
    (start, end), facts = _queries(subject, query), subject.facts
    heads = len(_layers(subject, query)) * facts.num_heads
    return 2 * heads * (end - start) * (end + facts.width) * facts.head_size


def walks(subject: Subject, query: Query) -> int:
    """The weights at their stages, what heads add, and the matrices behind them, unpacked."""
    (start, end), facts = _queries(subject, query), subject.facts
    heads = len(_layers(subject, query)) * facts.num_heads
    count = end - start
    return heads * (8 * count * end + count * facts.width + facts.head_size * facts.width)


def probe(subject: Subject, query: Query, taken: ReplayValues) -> HeadGrid:
    """Means over queries of where each head looks, for the layers of the query."""
    layers, (start, end) = _layers(subject, query), _queries(subject, query)
    successors = _successors(subject.answer.token_ids, start, end)
    rows: list[dict[str, Tensor]] = []
    groups: list[int] = []
    row = _LastRow(subject, end)
    for layer in layers:
        breathe()
        seen = met(subject, taken, layer, start=start, end=end, keys=end)
        groups.append(seen.keys.shape[1])
        sums: dict[str, Tensor] = {}
        for first, last in seen.spans(start, end, num_heads=seen.attention.num_heads):
            opened = seen.open_rows(first, last)
            found = _statistics(opened, first, successors[first - start : last - start])
            if last == end:
                row.see(layer, opened.weights[-1])
            sums = {name: each + sums.get(name, 0.0) for name, each in found.items()}
        mixed = taken.value(MIXED, layer, start=start, end=end)
        if (GATE, layer) in taken.values:
            mixed = mixed * taken.value(GATE, layer, start=start, end=end)
        sums["added"] = torch.linalg.vector_norm(seen.attention.updates(mixed), dim=-1).sum(0)
        rows.append(sums)
    num_repeated = sum(each is not None for each in successors)
    counts = {"induction": max(1, num_repeated)}

    def mean(name: str) -> Array:
        stacked = torch.stack([row[name] for row in rows]) / counts.get(name, end - start)
        return stacked.float().cpu().numpy()

    return HeadGrid(
        layers=layers,
        num_layers=subject.facts.num_layers,
        windows=tuple(window_of(block_of(subject, i).attention.cache_spec.extent) for i in layers),
        groups=tuple(groups),
        start=start,
        end=end,
        num_repeated=num_repeated,
        entropy=mean("entropy"),
        first=mean("first"),
        previous=mean("previous"),
        self=mean("self"),
        induction=mean("induction"),
        sink=mean("sink"),
        added=mean("added"),
        telling=row.tell(),
    )


class _LastRow:
    """The last query's weights, head by head: keeps those of the head that tells most."""

    def __init__(self, subject: Subject, end: int) -> None:
        self._start, self._texts = max(0, end - ROW_KEYS), subject.texts()[:end]
        control, ids = subject.tokenizer.control_ids, subject.answer.token_ids
        self._words = [
            key
            for key in range(max(1, self._start), end - 2)
            if ids[key] not in control and any(sign.isalnum() for sign in self._texts[key])
        ]
        self._best, self._found = 0.0, (0, 0, torch.zeros(0))

    def see(self, layer: int, weights: Tensor) -> None:
        """The weights of all heads of a layer. Shapes: [H, K]."""
        if not self._words:
            return
        largest, head = weights[:, self._words].amax(dim=-1).max(dim=0)
        if float(largest) > self._best:
            self._best, self._found = float(largest), (layer, int(head), weights[head])

    def tell(self) -> TellingRow | None:
        """The row that tells most; the first of equal ones."""
        if not self._best:
            return None
        layer, head, weights = self._found
        kept = weights[self._start :].float().cpu().numpy()
        return TellingRow(layer, head, self._start, tuple(self._texts[self._start :]), kept)


def _statistics(
    opened: AttentionTerms, start: int, successors: Sequence[int | None]
) -> dict[str, Tensor]:
    """Sums over queries from position start on. Shapes: each [H]."""
    weights = opened.weights.double()  # [Q, H, K]
    rows = torch.arange(len(weights), device=weights.device)
    repeated = [(row, key) for row, key in enumerate(successors) if key is not None]
    row_ids, keys = ([pair[i] for pair in repeated] for i in range(2))
    return {
        "entropy": -torch.special.xlogy(weights, weights).sum(dim=(0, 2)) / math.log(2),
        "first": weights[:, :, 0].sum(dim=0),
        "previous": weights[rows, :, (rows + start - 1).clamp_min(0)].sum(dim=0),
        "self": weights[rows, :, rows + start].sum(dim=0),
        "induction": weights[row_ids, :, keys].sum(dim=0),
        "sink": opened.sink.double().sum(dim=0),
    }


def _successors(token_ids: Sequence[int], start: int, end: int) -> list[int | None]:
    """For positions from start on: where the token behind the same token's last occurrence is.

    An occurrence just before does not count: the token behind it is the position itself.
    """
    last: dict[int, int] = {}
    found: list[int | None] = []
    for position in range(end):
        if position >= 2:
            last[token_ids[position - 2]] = position - 2
        earlier = last.get(token_ids[position])
        if position >= start:
            found.append(None if earlier is None else earlier + 1)
    return found


def _layers(subject: Subject, query: Query) -> tuple[int, ...]:
    """The layer asked for, or as many of all, evenly, as can be looked at in one go."""
    if query.layer is not None:
        return (layer_of(subject, query),)
    layers, facts = opened_layers(subject), subject.facts
    per_layer = 2 * facts.num_groups * facts.head_size * (position_of(subject, query) + 1)
    every = -(-len(layers) * per_layer // MOST_STORED)
    return layers[::every]


def _queries(subject: Subject, query: Query) -> tuple[int, int]:
    end = position_of(subject, query) + 1
    return max(min(1, end - 1), end - MOST_QUERIES), end
