"""Attention layers of an answer: which can be opened, and queries with the keys that they meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard, cast

import torch
from torch import Tensor

from cutaway.blocks.attention.opened import AttentionTerms, Openable, attention_weights
from cutaway.blocks.block import Block
from cutaway.core.errors import RequestError
from cutaway.core.layout import Extent, Window
from cutaway.host.turns import breathe
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject

QUERY = "blocks.attention.query"
MIXED = "blocks.attention.mixed"
GATE = "blocks.attention.gate"  # of layers that have one
MOST_CELLS = 2**18  # weights held at once, about 10 ms of work


def block_of(subject: Subject, layer: int) -> Block:
    """The model's block of that layer, by its type."""
    return cast(Block, subject.transformer.blocks[layer])


_openable: dict[type, bool] = {}


def _is_openable(attention: object) -> TypeGuard[Openable]:
    """Asked once of each kind: of a protocol of many members it takes 40 us."""
    kind = type(attention)
    if kind not in _openable:
        _openable[kind] = isinstance(attention, Openable)
    return _openable[kind]


def opened_layers(subject: Subject) -> tuple[int, ...]:
    """Layers that keep keys, not a state. Raises: RequestError where there is none."""
    layers = range(subject.facts.num_layers)
    found = tuple(i for i in layers if _is_openable(block_of(subject, i).attention))
    if not found:
        raise RequestError("every layer keeps a state: there are no attention weights.")
    return found


def layer_of(subject: Subject, query: Query) -> int:
    """The layer asked for, else the middle one. Raises: RequestError where it keeps a state."""
    layers = opened_layers(subject)
    if query.layer is None:
        return layers[len(layers) // 2]
    if query.layer not in layers:
        known = ", ".join(map(str, layers))
        raise RequestError(
            f"layer {query.layer} keeps a state of fixed size, which has no attention weights; "
            f"layers with keys are {known}.",
            param="layer",
        )
    return query.layer


def position_of(subject: Subject, query: Query) -> int:
    """The position asked for, else the last."""
    return subject.num_positions - 1 if query.position is None else query.position


@dataclass(frozen=True)
class Met:
    """One layer's queries of some positions, and every key from 0 up to an end.

    Shapes: query [Q, H, C]; keys [K, G, C], values [K, G, W], see Openable.entries.
    """

    attention: Openable
    query: Tensor
    keys: Tensor
    values: Tensor
    start: int

    def open_rows(self, start: int, end: int, *, head: int | None = None) -> AttentionTerms:
        """Weights of the queries of some positions, with the stages before them."""
        breathe()
        positions = torch.arange(start, end, device=self.query.device)
        rows = self.query[start - self.start : end - self.start]
        return attention_weights(self.attention, rows, self.keys, positions=positions, head=head)

    def wide(self) -> Met:
        """With queries in float64, in which the keys of a head then meet them.

        So what differs from the engine is the engine's rounding. Keys and values stay as they are:
        of 100,000 tokens all groups in float64 were gigabytes.
        """
        return replace(self, query=self.query.double())

    def spans(self, start: int, end: int, *, num_heads: int) -> list[tuple[int, int]]:
        """Positions in parts of which all weights can be held at once."""
        size = max(1, MOST_CELLS // (len(self.keys) * num_heads))
        return [(at, min(at + size, end)) for at in range(start, end, size)]


def met(
    subject: Subject, taken: ReplayValues, layer: int, *, start: int, end: int, keys: int
) -> Met:
    """Queries of positions start to end, and the keys of positions 0 to keys."""
    attention = block_of(subject, layer).attention
    assert _is_openable(attention), "the layer was asked for as one that can be opened"
    stored = {name: each[:keys] for name, each in taken.stored[layer].items()}
    query = taken.value(QUERY, layer, start=start, end=end)
    return Met(attention, query, *attention.entries(stored), start)


def window_of(extent: Extent) -> int | None:
    """Tokens that a window spans; None where every earlier token is visible."""
    return extent.width if isinstance(extent, Window) else None


def reach_of(subject: Subject, layer: int) -> int | None:
    """How many tokens back a layer's output can have heard of, by way of the layers below it.

    Windows add up from layer to layer; None where a layer up to this one sees everything.
    """
    total = 0
    for index in range(layer + 1):
        attention = block_of(subject, index).attention
        window = window_of(attention.cache_spec.extent)
        if window is None or not _is_openable(attention):
            return None
        total += window - 1
    return total
