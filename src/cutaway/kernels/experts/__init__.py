"""Matrix products in which each row goes to a matrix of its own choice."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.experts import plain
from cutaway.kernels.experts.plain import (
    TILE,
    Chosen,
    GroupedLayers,
    grouped_linear,
    sort_by_expert,
)
from cutaway.kernels.recording import operation

__all__ = [
    "TILE",
    "Chosen",
    "GroupedLayers",
    "count_by_expert",
    "grouped_linear",
    "mix_experts",
    "sort_by_expert",
    "tiled_linear",
]


def _like_first(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _counted(ids: Tensor, num_experts: int) -> Tensor:
    return ids.new_empty(num_experts)


def _scored(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    del bias
    return x.new_empty((len(x), len(weight)))


@operation(shape_of=_counted)
def count_by_expert(expert_ids: Tensor, num_experts: int) -> Tensor:
    """See plain.count_by_expert."""
    return plain.count_by_expert(expert_ids, num_experts)


@operation(shape_of=_like_first)
def mix_experts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers) -> Tensor:
    """See plain.mix_experts."""
    return plain.mix_experts(x, expert_ids, weights, experts)


@operation(shape_of=_scored)
def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.tiled_linear."""
    return plain.tiled_linear(x, weight, bias)
