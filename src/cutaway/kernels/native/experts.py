"""Native operations of layers with experts: which a token goes to, and what they give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import (
    NormWeights,
    Operation,
    address,
    norming,
    require,
    require_apart,
    require_matrix,
    require_vector,
    tensors_of,
)
from cutaway.kernels.native.structs import Activation, Code, RoutingRule, Rows
from cutaway.kernels.native.weight_stack import WeightStack


@dataclass(frozen=True)
class GroupChoice:
    """Experts in groups of neighbours, of which a token may use the experts of some.

    num_counted: a group is worth the sum of so many of its best scores.
    """

    num_groups: int
    num_chosen: int
    num_counted: int


@dataclass(frozen=True, eq=False)
class Routing:
    """A rule that chooses experts by scores, as blocks/router.py has them.

    correction:       [E] takes part in the choice, not in the weights.
    factors:          [E] of the weights of chosen experts.
    score_multiplier: of scores. multiplier: of weights.
    is_renormalized:  whether a token's weights are divided by their sum and least_sum.
    """

    rule: RoutingRule
    num_chosen: int
    groups: GroupChoice | None = None
    correction: Tensor | None = None
    factors: Tensor | None = None
    score_multiplier: float = 1.0
    multiplier: float = 1.0
    is_renormalized: bool = False
    least_sum: float = 0.0


@dataclass(frozen=True)
class Clamp:
    """The gate of gpt-oss: gate * sigmoid(alpha * gate) * (up + 1), both sides bounded by limit."""

    alpha: float
    limit: float


def route(scores: Tensor, routing: Routing, *, ids: Tensor, weights: Tensor) -> Operation:
    """The experts of each token, the best first, and how much each counts.

    Shapes: scores [T, E], ids [T, K] int64, weights [T, K].
    """
    rows, num_experts = scores.shape
    require_matrix(scores, num_experts)
    _require_chosen(ids, weights, (rows, routing.num_chosen))
    require(routing.num_chosen <= num_experts, "a token goes to no more experts than there are")
    groups = routing.groups or GroupChoice(1, 1, 1)
    for each in (routing.correction, routing.factors):
        if each is not None:
            require_vector(each, num_experts)
    arguments = structs.RouteStruct(
        *(Rows.TOKENS, rows, scores.data_ptr(), num_experts, routing.num_chosen, routing.rule),
        *(groups.num_groups, groups.num_chosen, groups.num_counted),
        *(address(routing.correction), address(routing.factors)),
        *(routing.score_multiplier, routing.multiplier),
        *(int(routing.is_renormalized), routing.least_sum, ids.data_ptr(), weights.data_ptr()),
    )
    kept = (scores, ids, weights, routing.correction, routing.factors)
    return Operation(Code.ROUTE, arguments, kept)


def experts(
    x: Tensor,
    gate_up: WeightStack,
    down: WeightStack,
    *,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
    norm: NormWeights | None = None,
    biases: tuple[Tensor, Tensor] | None = None,
    is_interleaved: bool = False,
    activation: Activation | Clamp = Activation.SILU,
    residual: Tensor | None = None,
) -> Operation:
    """out = residual + the weighted sum of a token's experts, each down (activation(gate) * up).

    is_interleaved: rows of gate and up stand in turn, not those of gate first.

    Shapes: x [T, D], gate_up [E, 2 F, D], down [E, D, F], ids [T, K] int64 below E,
    weights [T, K], biases [E, 2 F] and [E, D], residual and out [T, D]. residual may be out.
    """
    rows, width = len(x), down.num_rows
    for each in (x, out, residual):
        if each is not None:
            require_matrix(each, width, rows)
    require_apart(x, out)
    num_experts, inner = down.num_matrices, down.num_columns
    shape = (gate_up.num_matrices, gate_up.num_rows, gate_up.num_columns)
    require(shape == (num_experts, 2 * inner, width), "gate and up are what down goes back from")
    _require_chosen(ids, weights, (rows, ids.shape[-1]))
    require(ids.shape[1] <= num_experts, "a token goes to no more experts than there are")
    first, second = biases or (None, None)
    if biases is not None:
        require_matrix(biases[0], 2 * inner, num_experts)
        require_matrix(biases[1], width, num_experts)
    clamp = activation if isinstance(activation, Clamp) else Clamp(0.0, 0.0)
    kind = Activation.CLAMPED if isinstance(activation, Clamp) else activation
    require((kind is Activation.CLAMPED) == (clamp is activation), "a clamped gate has its numbers")
    arguments = structs.ExpertsStruct(
        *(Rows.TOKENS, rows, x.data_ptr(), norming(norm, width)),
        *(ids.data_ptr(), weights.data_ptr(), ids.shape[1]),
        *(gate_up.struct(), down.struct(), address(first), address(second)),
        *(int(is_interleaved), kind, clamp.alpha, clamp.limit),
        *(address(residual), out.data_ptr()),
    )
    kept = (x, ids, weights, gate_up.data, down.data, out, residual, first, second)
    return Operation(Code.EXPERTS, arguments, (*kept, *tensors_of(norm)))


def expert_units(
    x: Tensor,
    gate_up: WeightStack,
    *,
    ids: Tensor,
    out: Tensor,
    norm: NormWeights | None = None,
    bias: Tensor | None = None,
    is_interleaved: bool = False,
    activation: Activation | Clamp = Activation.SILU,
) -> Operation:
    """out = activation(gate) * up of each of a token's experts, side by side; see experts.

    Shapes: x [T, D], gate_up [E, 2 F, D], ids [T, K] int64 below E, bias [E, 2 F], out [T, K F].
    """
    rows, num_experts, inner = len(x), gate_up.num_matrices, gate_up.num_rows // 2
    num_chosen = ids.shape[-1]
    require_matrix(x, gate_up.num_columns, rows)
    require_matrix(out, num_chosen * inner, rows)
    require_apart(x, out)
    require(gate_up.num_rows % 2 == 0, "gate and up have as many rows")
    _require_ids(ids, (rows, num_chosen))
    require(num_chosen <= num_experts, "a token goes to no more experts than there are")
    if bias is not None:
        require_matrix(bias, 2 * inner, num_experts)
    clamp = activation if isinstance(activation, Clamp) else Clamp(0.0, 0.0)
    kind = Activation.CLAMPED if isinstance(activation, Clamp) else activation
    require((kind is Activation.CLAMPED) == (clamp is activation), "a clamped gate has its numbers")
    arguments = structs.ExpertUnitsStruct(
        *(Rows.TOKENS, rows, x.data_ptr(), norming(norm, gate_up.num_columns)),
        *(ids.data_ptr(), num_chosen, gate_up.struct(), address(bias)),
        *(int(is_interleaved), kind, clamp.alpha, clamp.limit, out.data_ptr()),
    )
    kept = (x, ids, gate_up.data, bias, out)
    return Operation(Code.EXPERT_UNITS, arguments, (*kept, *tensors_of(norm)))


def expert_sums(
    x: Tensor,
    down: WeightStack,
    *,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
) -> Operation:
    """out = the weighted sum of what down makes of each of a token's experts' units.

    Shapes: x [T, K F], down [E, D, F], ids [T, K] int64 below E, weights [T, K], bias [E, D],
    out [T, D].
    """
    rows, num_chosen = len(x), ids.shape[-1]
    require_matrix(x, num_chosen * down.num_columns, rows)
    require_matrix(out, down.num_rows, rows)
    require_apart(x, out)
    _require_chosen(ids, weights, (rows, num_chosen))
    require(num_chosen <= down.num_matrices, "a token goes to no more experts than there are")
    if bias is not None:
        require_matrix(bias, down.num_rows, down.num_matrices)
    arguments = structs.ExpertSumsStruct(
        *(Rows.TOKENS, rows, x.data_ptr(), ids.data_ptr(), weights.data_ptr(), num_chosen),
        *(down.struct(), address(bias), out.data_ptr()),
    )
    return Operation(Code.EXPERT_SUMS, arguments, (x, ids, weights, down.data, bias, out))


def _require_chosen(ids: Tensor, weights: Tensor, shape: tuple[int, int]) -> None:
    _require_ids(ids, shape)
    require_matrix(weights, shape[1], shape[0])


def _require_ids(ids: Tensor, shape: tuple[int, int]) -> None:
    is_sound = ids.dtype == torch.int64 and ids.is_contiguous() and ids.device.type == "cpu"
    require(is_sound and ids.shape == shape, "ids of experts are contiguous int64 [T, K]")
