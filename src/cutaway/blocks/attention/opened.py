"""Attention of some queries step by step, from what is stored: every stage of every weight.

The kernels reduce scores as they come and keep none. Here all of a query's are there at once, so
ask for few queries, or for one head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cutaway.blocks.positions import Frequencies, angles
from cutaway.blocks.slots import Cosines
from cutaway.kernels.attention import Scoring


@runtime_checkable
class Openable(Protocol):
    """Attention over stored keys. A layer that keeps a state instead has no weights to show."""

    num_heads: int

    @property
    def frequencies(self) -> Frequencies | None:
        """Of rotary positions; None where it has none."""
        ...

    @property
    def scoring(self) -> Scoring:
        """Scale, cap, sinks and which keys are visible."""
        ...

    def entries(self, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values as queries meet them. Shapes: [K, G, C], [K, G, W]."""
        ...

    def updates(self, mixed: Tensor) -> Tensor:
        """What each head adds to the layer's update. Shapes: [T, H, W] -> [T, H, D]."""
        ...

    def turn_further(self, heads: Tensor, rotation: Cosines) -> Tensor:
        """Queries or keys, turned further. Shapes: [T, H, C]."""
        ...


@dataclass(frozen=True)
class AttentionTerms:
    """Every stage between queries and their mixed values.

    products: query times key.   scaled: times the scale, below the cap.   visible: by the mask.
    weights:  after the softmax; with sink, a learned score's share, they add up to 1.

    Shapes: products, scaled, weights [Q, H, K]; visible [Q, K]; sink [Q, H].
    """

    products: Tensor
    scaled: Tensor
    visible: Tensor
    weights: Tensor
    sink: Tensor

    def mix(self, values: Tensor) -> Tensor:
        """The weighted sum. Shapes: values [K, G, W] -> [Q, H, W]."""
        num_queries, num_heads, num_keys = self.weights.shape
        grouped = self.weights.view(num_queries, values.shape[1], -1, num_keys)
        sums = torch.einsum("qgsk,kgw->qgsw", grouped, values.to(grouped.dtype))
        return sums.reshape(num_queries, num_heads, -1)


def attention_weights(
    attention: Openable, query: Tensor, keys: Tensor, *, positions: Tensor, head: int | None = None
) -> AttentionTerms:
    """The weights of some queries over all keys from position 0, with the stages before them.

    query: as it meets keys: normed and turned.   positions: of the queries.
    head:  one alone, H = 1 in what is returned; query and keys are those of all heads.

    Shapes: query [Q, H, C]; keys [K, G, C], see Openable.entries; positions [Q] int64.
    """
    scoring, sinks = attention.scoring, attention.scoring.sinks
    if head is not None:
        query, keys = query[:, head : head + 1], of_head(attention, keys, head)
        sinks = None if sinks is None else sinks[head : head + 1]
    wide = torch.promote_types(query.dtype, torch.float32)
    count, _, size = query.shape
    grouped = query.to(wide).reshape(count, keys.shape[1], -1, size)  # [Q, G, H/G, C]
    products = torch.einsum("qgsc,kgc->qgsk", grouped, keys.to(wide)).flatten(1, 2)  # [Q, H, K]
    places = torch.arange(len(keys), device=keys.device)
    visible = scoring.visible(positions[:, None], places[None, :])
    scores = scoring.scores(products, visible[:, None])
    if sinks is not None:
        column = sinks.detach().to(wide)[:, None].expand(*scores.shape[:2], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)
    sink = torch.zeros_like(weights[..., 0]) if sinks is None else weights[..., -1]
    return AttentionTerms(
        products, scoring.scale_products(products), visible, weights[..., : len(keys)], sink
    )


def of_head(attention: Openable, entries: Tensor, head: int) -> Tensor:
    """Keys or values of a head, which it may share. Shapes: [K, G, C] -> [K, 1, C]."""
    group = head * entries.shape[1] // attention.num_heads
    return entries[:, group : group + 1]


def move_heads(attention: Openable, heads: Tensor, *, by: Tensor, declared_length: int) -> Tensor:
    """Queries or keys as they were had they stood so many positions further.

    Turning further adds angles, so nothing has to be turned back. Without rotary positions
    nothing changes.

    Shapes: heads [T, H, C]; by [T] int64, negative for earlier.
    """
    frequencies = attention.frequencies
    if frequencies is None:
        return heads
    lengths = torch.full_like(by, declared_length)
    cos, sin = (
        each / frequencies.attention_factor
        for each in angles(frequencies, by, lengths, torch.float64)
    )
    return attention.turn_further(heads.double(), (cos, sin)).to(heads.dtype)
