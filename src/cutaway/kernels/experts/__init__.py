"""Matrix products in which each row goes to a matrix of its own choice."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.kernels.experts import plain
from cutaway.kernels.experts.plain import (
    TILE,
    Chosen,
    GroupedLayers,
    Rule,
    grouped_linear,
    sort_by_expert,
)
from cutaway.kernels.native import GroupChoice, Routing, RoutingRule
from cutaway.kernels.recording import operation

__all__ = [
    "TILE",
    "Chosen",
    "GroupChoice",
    "GroupedLayers",
    "Routing",
    "RoutingRule",
    "Rule",
    "add_results",
    "choose_experts",
    "count_by_expert",
    "grouped_linear",
    "mix_experts",
    "multiply_units",
    "sort_by_expert",
    "tiled_linear",
]


def _like_first(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _counted(ids: Tensor, num_experts: int) -> Tensor:
    return ids.new_empty(num_experts)


def _chosen(scores: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    shape = (len(scores), rule.num_chosen)
    return scores.new_empty(shape, dtype=torch.int64), scores.new_empty(shape)


def _scored(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    del bias
    return x.new_empty((len(x), len(weight)))


@operation(shape_of=_chosen)
def choose_experts(scores: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """What a rule chooses by scores; one with a routing says itself in numbers, for other forms.

    Shapes: scores [T, E] -> expert ids [T, K], the best first, and weights [T, K].
    """
    return rule(scores)


@operation(shape_of=_counted)
def count_by_expert(expert_ids: Tensor, num_experts: int) -> Tensor:
    """See plain.count_by_expert."""
    return plain.count_by_expert(expert_ids, num_experts)


@operation(shape_of=_like_first)
def mix_experts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers) -> Tensor:
    """See plain.mix_experts."""
    return plain.mix_experts(x, expert_ids, weights, experts)


def _side_by_side(x: Tensor, expert_ids: Tensor, experts: GroupedLayers) -> Tensor:
    return x.new_empty((len(x), expert_ids.shape[1] * experts.num_units))


@operation(shape_of=_side_by_side)
def multiply_units(x: Tensor, expert_ids: Tensor, experts: GroupedLayers) -> Tensor:
    """See plain.multiply_units."""
    return plain.multiply_units(x, expert_ids, experts)


def _added(products: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers) -> Tensor:
    del expert_ids, weights
    return products.new_empty((len(products), experts.num_outputs))


@operation(shape_of=_added)
def add_results(
    products: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers
) -> Tensor:
    """See plain.add_results."""
    return plain.add_results(products, expert_ids, weights, experts)


@operation(shape_of=_scored)
def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.tiled_linear."""
    return plain.tiled_linear(x, weight, bias)
