"""Native forms of layers with experts: scores, routing, and what the chosen ones give."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.experts import GroupedLayers
from cutaway.kernels.gate import clamped_gate, gelu_gate, gelu_tanh_gate, relu_gate, silu_gate
from cutaway.kernels.lowering.forms import Forms, NativeCall, Place, present
from cutaway.kernels.lowering.packed_floats import packed_matrix
from cutaway.kernels.lowering.rows import is_matrix, rows_of
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.recording import TOKENS, Call, Recorded

_GATES = {
    silu_gate: native.Activation.SILU,
    gelu_gate: native.Activation.GELU,
    gelu_tanh_gate: native.Activation.GELU_TANH,
    relu_gate: native.Activation.RELU,
}


def score(
    forms: Forms, call: Call, x: Any, weight: Any, bias: Tensor | None = None
) -> NativeCall | None:
    """A score per expert: a product whose matrix is packed as the floats that it is."""
    if not is_matrix(x) or isinstance(weight, Recorded) or not weight.is_floating_point():
        return None
    packed = packed_matrix(weight.float())
    source, norm = forms.before(x, call)
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        biases = None if bias is None else [bias.detach().float()]
        return [
            native.linear(
                place(source), [packed], out=place(out), norm=norm, biases=biases, rows=rows_of(x)
            )
        ]

    return NativeCall((source,), (out,), make)


def choose(
    forms: Forms, call: Call, scores: Any, rule: Any, *, dtype: Any = None
) -> NativeCall | None:
    """Which experts a token goes to, by a rule that says itself in numbers."""
    del forms
    if dtype not in (None, scores.dtype):
        return None
    routing: native.Routing | None = getattr(rule, "routing", None)
    if routing is None or not is_matrix(scores) or rows_of(scores) is Rows.LOGITS:
        return None
    ids, weights = cast("tuple[Recorded, Recorded]", call.results)

    def make(place: Place) -> list[native.Operation]:
        return [native.route(place(scores), routing, ids=place(ids), weights=place(weights))]

    return NativeCall((scores,), (ids, weights), make)


def mix(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """The weighted sum of a token's experts, of packed stacks."""
    return mix_and_add(forms, call, call.results, None)


def mix_and_add(
    forms: Forms, call: Call, out: Recorded, residual: Recorded | None
) -> NativeCall | None:
    """The same, added to something."""
    x, ids, weights = call.args[:3]
    experts: GroupedLayers = call.args[3]
    gate_up, down = (getattr(each, "stack", None) for each in (experts.gate_up, experts.down))
    if not (isinstance(gate_up, native.WeightStack) and isinstance(down, native.WeightStack)):
        return None
    activation = _activation(experts.gate)
    is_placed = is_matrix(x) and is_matrix(weights) and _are_ids(ids)
    if activation is None or not is_placed or (residual is not None and not is_matrix(residual)):
        return None
    given = None if experts.biases is None else tuple(each.detach() for each in experts.biases)
    biases = cast("tuple[Tensor, Tensor] | None", given)
    source, norm = forms.before(x, call)

    def make(place: Place) -> list[native.Operation]:
        operation = native.experts(
            *(place(source), gate_up, down),
            ids=place(ids),
            weights=place(weights),
            out=place(out),
            norm=norm,
            biases=biases,
            is_interleaved=experts.is_interleaved,
            activation=activation,
            residual=None if residual is None else place(residual),
        )
        return [operation]

    return NativeCall((source, ids, weights, *present(residual)), (out,), make)


def multiply_units(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """What the gates of a token's experts give, of packed stacks of which a rank has some rows."""
    x, ids, experts = call.args
    gate_up, activation = getattr(experts.gate_up, "stack", None), _activation(experts.gate)
    if not isinstance(gate_up, native.WeightStack) or activation is None:
        return None
    if not (is_matrix(x) and _are_ids(ids)):
        return None
    bias = _bias(experts, 0)
    source, norm = forms.before(x, call)
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        operation = native.expert_units(
            *(place(source), gate_up),
            ids=place(ids),
            out=place(out),
            norm=norm,
            bias=bias,
            is_interleaved=experts.is_interleaved,
            activation=activation,
        )
        return [operation]

    return NativeCall((source, ids), (out,), make)


def add_results(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """The weighted sum of what down makes of all ranks' units."""
    del forms
    products, ids, weights, experts = call.args
    down = getattr(experts.down, "stack", None)
    is_placed = is_matrix(products) and is_matrix(weights) and _are_ids(ids)
    if not (isinstance(down, native.WeightStack) and is_placed):
        return None
    bias = _bias(experts, 1)
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        return [
            native.expert_sums(
                *(place(products), down),
                ids=place(ids),
                weights=place(weights),
                out=place(out),
                bias=bias,
            )
        ]

    return NativeCall((products, ids, weights), (out,), make)


def _bias(experts: GroupedLayers, place: int) -> Tensor | None:
    return None if experts.biases is None else [*experts.biases][place].detach()


def _activation(gate: Any) -> native.Activation | native.Clamp | None:
    if isinstance(gate, partial):
        is_clamped = cast(Any, gate.func) is clamped_gate
        return native.Clamp(**gate.keywords) if is_clamped else None
    return _GATES.get(gate)


def _are_ids(ids: Any) -> bool:
    is_whole = isinstance(ids, Recorded) and ids.root.read is None and ids.meta.is_contiguous()
    return is_whole and ids.dtype == torch.int64 and ids.dim() == 2 and ids.shape[0] == TOKENS
