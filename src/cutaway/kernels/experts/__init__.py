"""Matrix products in which each row goes to a matrix of its own choice."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from cutaway.kernels.dispatch import TRITON_DTYPES, uses_triton
from cutaway.kernels.experts import plain
from cutaway.kernels.experts.grouped_products import mix_trainable_experts, score_trainable_experts
from cutaway.kernels.experts.plain import (
    TILE,
    Chosen,
    GroupedLayers,
    Rule,
    grouped_linear,
    sort_by_expert,
)
from cutaway.kernels.gate import clamped_gate, gelu_gate, gelu_tanh_gate, relu_gate, silu_gate
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
    "mix_trainable_experts",
    "multiply_units",
    "score_experts",
    "score_trainable_experts",
    "sort_by_expert",
    "stays_on_device",
    "tiled_linear",
]


_GATES = {
    silu_gate: "silu",
    gelu_tanh_gate: "gelu_tanh",
    gelu_gate: "gelu",
    relu_gate: "relu",
}


def _like_first(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _counted(ids: Tensor, num_experts: int) -> Tensor:
    return ids.new_empty(num_experts)


def _chosen(
    scores: Tensor, rule: Rule, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    shape = (len(scores), rule.num_chosen)
    ids = scores.new_empty(shape, dtype=torch.int64)
    return ids, scores.new_empty(shape, dtype=dtype or scores.dtype)


def _scored(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    del bias
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((len(x), len(weight)), dtype=wide)


@operation(shape_of=_chosen)
def choose_experts(
    scores: Tensor, rule: Rule, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """What a rule chooses by scores; one with a routing says itself in numbers, for other forms.

    dtype: of the weights, where not that of scores.
    Shapes: scores [T, E] -> expert ids [T, K], the best first, and weights [T, K].
    """
    routing: Routing | None = getattr(rule, "routing", None)
    has_form = routing is not None and routing.groups is None
    if has_form and scores.dtype == torch.float32 and uses_triton(scores):
        from cutaway.kernels.experts import triton_routing

        return triton_routing.choose(scores, cast(Routing, routing), dtype or scores.dtype)
    expert_ids, weights = rule(scores)
    return expert_ids, weights if dtype is None else weights.to(dtype)


@operation(shape_of=_counted)
def count_by_expert(expert_ids: Tensor, num_experts: int) -> Tensor:
    """See plain.count_by_expert."""
    return plain.count_by_expert(expert_ids, num_experts)


@operation(shape_of=_scored)
def score_experts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.score_experts."""
    if len(x) and weight.dtype in TRITON_DTYPES and uses_triton(x, weight):
        from cutaway.kernels.experts import triton_routing

        return triton_routing.score(x, weight, bias)
    return plain.score_experts(x, weight, bias)


@operation(shape_of=_like_first)
def mix_experts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers) -> Tensor:
    """See plain.mix_experts. On a GPU nothing is counted on the host."""
    if not _is_taken(x, experts):
        return plain.mix_experts(x, expert_ids, weights, experts)
    blocks = _arrange(expert_ids, experts)
    return _add(_multiply(x, expert_ids, experts, blocks), expert_ids, weights, experts, blocks)


def _side_by_side(x: Tensor, expert_ids: Tensor, experts: GroupedLayers) -> Tensor:
    return x.new_empty((len(x), expert_ids.shape[1] * experts.num_units))


@operation(shape_of=_side_by_side)
def multiply_units(x: Tensor, expert_ids: Tensor, experts: GroupedLayers) -> Tensor:
    """See plain.multiply_units."""
    if not _is_taken(x, experts):
        return plain.multiply_units(x, expert_ids, experts)
    return _multiply(x, expert_ids, experts, _arrange(expert_ids, experts)).view(len(x), -1)


def _added(products: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers) -> Tensor:
    del expert_ids, weights
    return products.new_empty((len(products), experts.num_outputs))


@operation(shape_of=_added)
def add_results(
    products: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers
) -> Tensor:
    """See plain.add_results."""
    if not _is_taken(products, experts):
        return plain.add_results(products, expert_ids, weights, experts)
    rows = products.reshape(expert_ids.numel(), -1)
    return _add(rows, expert_ids, weights, experts, _arrange(expert_ids, experts))


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.tiled_linear."""
    return plain.tiled_linear(x, weight, bias)


def stays_on_device(experts: GroupedLayers) -> bool:
    """Whether products of these need no count on the host, so that a graph can hold them."""
    stacks = _stacks(experts)
    with torch.no_grad():  # as steps are run
        return stacks is not None and _is_taken(stacks[0], experts)


def _stacks(experts: GroupedLayers) -> tuple[Tensor, Tensor] | None:
    """Both stacks of matrices as numbers, where they are kept so. Shapes: [E, N, K]."""
    gate_up, down = (getattr(each, "weight", None) for each in (experts.gate_up, experts.down))
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor):
        return gate_up, down
    return None


def _is_taken(x: Tensor, experts: GroupedLayers) -> bool:
    """Whether Triton has these products."""
    stacks = _stacks(experts)
    if stacks is None or len(x) == 0 or not uses_triton(x, *stacks):
        return False
    are_alike = all(each.dtype == x.dtype and each.is_contiguous() for each in stacks)
    return are_alike and _activation(experts.gate) is not None


def _activation(gate: Any) -> tuple[str, float, float] | None:
    """Its name, alpha and limit; None where Triton has no form of it."""
    if isinstance(gate, partial):
        named = cast("dict[str, float]", gate.keywords)
        is_clamped = cast(Any, gate.func) is clamped_gate
        return ("clamped", named["alpha"], named["limit"]) if is_clamped else None
    name = _GATES.get(gate)
    return None if name is None else (name, 0.0, 0.0)


def _arrange(expert_ids: Tensor, experts: GroupedLayers) -> Any:
    """Blocks of one expert's pairs; None for a single token, which needs no order."""
    if len(expert_ids) == 1:
        return None
    from cutaway.kernels.experts import triton

    return triton.arrange(expert_ids, experts.num_experts)


def _multiply(x: Tensor, expert_ids: Tensor, experts: GroupedLayers, blocks: Any) -> Tensor:
    from cutaway.kernels.experts import triton

    name, alpha, limit = cast("tuple[str, float, float]", _activation(experts.gate))
    return triton.multiply_units(
        x,
        expert_ids,
        cast("tuple[Tensor, Tensor]", _stacks(experts))[0],
        None if experts.biases is None else next(iter(experts.biases)),
        triton.GateForm(triton.KINDS[name], alpha, limit),
        is_interleaved=experts.is_interleaved,
        blocks=blocks,
    )


def _add(
    products: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers, blocks: Any
) -> Tensor:
    from cutaway.kernels.experts import triton

    return triton.add_results(
        products,
        expert_ids,
        weights,
        cast("tuple[Tensor, Tensor]", _stacks(experts))[1],
        None if experts.biases is None else [*experts.biases][1],
        blocks=blocks,
    )
