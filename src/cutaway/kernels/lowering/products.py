"""Native forms of what goes row by row: lookup, norms, products, sums and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.elementwise import gelu, gelu_tanh, sigmoid, silu
from cutaway.kernels.experts import mix_experts
from cutaway.kernels.gate import gelu_gate, gelu_tanh_gate, relu, relu_gate, silu_gate
from cutaway.kernels.linear import LowRankPairs, project, take_rows
from cutaway.kernels.lowering.experts import mix_and_add
from cutaway.kernels.lowering.forms import (
    NORMS,
    Forms,
    NativeCall,
    Place,
    is_head_rows,
    norm_of,
    present,
)
from cutaway.kernels.lowering.rows import is_apart, is_matrix, is_rows, is_spaced, rows_of, start_of
from cutaway.kernels.native.structs import MAX_SEGMENTS, Rows
from cutaway.kernels.recording import Call, Recorded

GATES: Final[Mapping[Any, native.Activation]] = {
    silu_gate: native.Activation.SILU,
    gelu_gate: native.Activation.GELU,
    gelu_tanh_gate: native.Activation.GELU_TANH,
    relu_gate: native.Activation.RELU,
}
ACTIVATIONS: Final[Mapping[Any, native.Activation]] = {
    silu: native.Activation.SILU,
    gelu: native.Activation.GELU,
    gelu_tanh: native.Activation.GELU_TANH,
    relu: native.Activation.RELU,
    sigmoid: native.Activation.SIGMOID,
}


def gather(forms: Forms, call: Call, table: Any, ids: Any) -> NativeCall | None:
    """Rows of a packed table by the step's tokens."""
    return _gather(forms, table, ids, out=call.results)


def bring(forms: Forms, call: Call, *_: Any) -> NativeCall:
    """Rows that lie in their buffer before the step."""
    del forms
    return NativeCall((), (call.results,), lambda place: [])


def leave(forms: Forms, call: Call, stream: Any, layer: int) -> NativeCall | None:
    """A stream that stays in its buffer until the step is done."""
    del forms, call, layer
    return NativeCall((stream,), (), lambda place: []) if is_matrix(stream) else None


def take(forms: Forms, call: Call, x: Any, index: Any) -> NativeCall | None:
    """The rows of which logits are wanted."""
    if index is not forms.step.logit_rows or not is_matrix(x) or rows_of(x) is Rows.LOGITS:
        return None
    out: Recorded = call.results
    return NativeCall((x,), (out,), lambda place: [native.take(place(x), out=place(out))])


def norm(forms: Forms, call: Call, x: Any, *_: Any) -> NativeCall | None:
    """A norm that is wanted itself, of rows or of heads."""
    del forms
    found, out = norm_of(call), call.results
    if is_spaced(x) and x.dim() == 2:
        return _norm(call, out=out)
    if not (is_head_rows(x) and is_head_rows(out)) or found.kind is not native.NormKind.RMS:
        return None
    return NativeCall(
        (x,), (out,), lambda place: [native.rotate(place(x), None, out=place(out), norm=found)]
    )


def product(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """Products with packed segments; what they read may be normed first."""
    return _product(forms, call, out=call.results)


def add(forms: Forms, call: Call, first: Any, second: Any) -> NativeCall | None:
    """A sum; a side that nothing else reads is computed with it where its operation adds."""
    if not (is_rows(first) and is_rows(second)) or first.shape != second.shape:
        return None
    for residual, update in ((first, second), (second, first)):
        made = update.call
        if made is None or update.root is not update or not forms.goes_only_to(update, call):
            continue
        form = _ADDING.get(made.function)
        lowered = None if form is None else form(forms, made, call.results, residual)
        if lowered is not None:
            forms.absorbed.add(made)
            return lowered
    return _gate(first, None, out=call.results, residual=second)


def gate(forms: Forms, call: Call, gate: Any, up: Any) -> NativeCall | None:
    """An activated gate, with the product of both sides where nothing else reads it."""
    fused = _gated(forms, call, gate, up)
    if fused is not None:
        return fused
    return _gate(gate, up, out=call.results, activation=GATES[call.function])


def activate(forms: Forms, call: Call, x: Any) -> NativeCall | None:
    """An activation alone."""
    del forms
    return _gate(x, None, out=call.results, activation=ACTIVATIONS[call.function])


def multiply(forms: Forms, call: Call, first: Any, second: Any) -> NativeCall | None:
    """Rows times a number, a gate or each other."""
    return _multiply(forms, call, call.results, None)


def _multiply(
    forms: Forms, call: Call, out: Recorded, residual: Recorded | None
) -> NativeCall | None:
    first, second = call.args
    factor = _number(second)
    if factor is not None:
        made = first.call if isinstance(first, Recorded) else None
        if made is not None and first.root is first and forms.goes_only_to(first, call):
            lowered = None
            if made.function is take_rows and residual is None:
                lowered = _gather(forms, *made.args, multiplier=factor, out=out)
            elif made.function is Tensor.tanh and residual is None:
                lowered = _capped(forms, made, factor, out=out)
            if lowered is not None:
                forms.absorbed.add(made)
                return lowered
        return _gate(first, None, out=out, multiplier=factor, residual=residual)
    for gate, up in ((first, second), (second, first)):
        made = gate.call if isinstance(gate, Recorded) else None
        if made is None or made.function is not sigmoid or not forms.goes_only_to(gate, call):
            continue
        activation = native.Activation.SIGMOID
        lowered = None
        if gate.root is gate:
            lowered = _gate(made.args[0], up, out=out, activation=activation, residual=residual)
        if lowered is not None:
            forms.absorbed.add(made)
            return lowered
    return _gate(first, second, out=out, residual=residual)


def _capped(forms: Forms, tanh: Call, cap: float, *, out: Recorded) -> NativeCall | None:
    """cap * tanh(x / cap)."""
    below: Recorded = tanh.args[0]
    made = below.call
    is_division = made is not None and made.function in (Tensor.div, Tensor.__truediv__)
    if made is None or not is_division or not forms.goes_only_to(below, tanh):
        return None
    x, divisor = made.args
    if _number(divisor) != cap:
        return None
    lowered = _gate(x, None, out=out, activation=native.Activation.CAPPED, cap=cap)
    if lowered is not None:
        forms.absorbed.add(made)
    return lowered


def _gate(
    gate: Any,
    up: Any | None,
    *,
    out: Recorded,
    activation: native.Activation = native.Activation.IDENTITY,
    residual: Recorded | None = None,
    multiplier: float = 1.0,
    cap: float | None = None,
) -> NativeCall | None:
    """residual + multiplier * activation(gate) * up, where rows lie as the operation takes them."""
    sides = [gate] if up is None else [gate, up]
    if not all(is_apart(each) for each in sides) or not is_rows(out):
        return None
    if residual is not None and not is_rows(residual):
        return None
    # Rows of [T, 1] stand for all entries of the other side's.
    wide = sides[-1]
    is_alike = gate.shape == wide.shape or (*wide.shape[:-1], 1) == tuple(gate.shape)
    if not is_alike or out.shape != wide.shape or len({rows_of(each) for each in sides}) > 1:
        return None

    def make(place: Place) -> list[native.Operation]:
        operation = native.gate(
            place(gate),
            None if up is None else place(up),
            out=place(out),
            activation=activation,
            cap=cap,
            multiplier=multiplier,
            residual=None if residual is None else place(residual),
            rows=rows_of(out),
        )
        return [operation]

    return NativeCall((*sides, *present(residual)), (out,), make)


def _gather(
    forms: Forms, table: Any, ids: Any, *, out: Recorded, multiplier: float = 1.0
) -> NativeCall | None:
    packed = getattr(table, "packed", None)
    if not isinstance(packed, native.PackedWeight) or ids is not forms.step.token_ids:
        return None
    return NativeCall(
        (), (out,), lambda place: [native.gather(packed, out=place(out), multiplier=multiplier)]
    )


def _norm(call: Call, *, out: Recorded, residual: Recorded | None = None) -> NativeCall:
    x: Recorded = call.args[0]
    norm = norm_of(call)

    def make(place: Place) -> list[native.Operation]:
        operation = native.norm(
            *(place(x), norm.weight, norm.epsilon),
            bias=norm.bias,
            kind=norm.kind,
            out=place(out),
            residual=None if residual is None else place(residual),
            rows=rows_of(x),
        )
        return [operation]

    return NativeCall(present(x, residual), (out,), make)


def _product(
    forms: Forms, call: Call, *, out: Recorded, residual: Recorded | None = None
) -> NativeCall | None:
    x, segments, biases, pairs, adapters = _given(call)
    packed = _packed(segments)
    if packed is None or len(packed) > MAX_SEGMENTS or not is_matrix(x):
        return None
    if not _fits(forms, packed, pairs, adapters):
        return None
    if biases is not None and len(biases) != len(packed):
        return None
    source, norm = forms.before(x, call)

    def make(place: Place) -> list[native.Operation]:
        operation = native.linear(
            place(source),
            packed,
            out=place(out),
            norm=norm,
            biases=biases,
            residual=None if residual is None else place(residual),
            rows=rows_of(source),
            pairs=None if pairs is None else pairs.packed,
        )
        return [operation]

    return NativeCall(present(source, residual), (out,), make)


def _given(call: Call) -> tuple[Any, Any, Any, Any, Any]:
    """The arguments of a product; one that knows no adapters is called without them."""
    x, segments, biases, *adapted = call.args
    pairs, adapters = adapted or (None, None)
    return x, segments, biases, pairs, adapters


def _fits(
    forms: Forms, packed: Sequence[native.PackedWeight], pairs: LowRankPairs | None, adapters: Any
) -> bool:
    """Whether native products add what adapters add: rows are tokens, segments those of pairs."""
    if pairs is None:
        return True
    return adapters is forms.step.adapters and pairs.rows == tuple(each.num_rows for each in packed)


def _gated(forms: Forms, call: Call, gate: Any, up: Any) -> NativeCall | None:
    """Both sides are the halves of one product, each a segment of it."""
    if not (is_apart(gate) and is_apart(up)) or gate.dim() != 2 or rows_of(gate) is Rows.LOGITS:
        return None
    both, made, width = gate.root, gate.root.call, gate.shape[1]
    if made is None or made.function is not project or up.root is not both:
        return None
    x, segments, biases, pairs, adapters = _given(made)
    packed, starts = _packed(segments), (start_of(gate), start_of(up))
    if starts != (0, width) or not forms.goes_only_to(both, call) or not is_matrix(x):
        return None
    if packed is None or [each.num_rows for each in packed] != [width, width]:
        return None
    first, second = packed
    if first.kind.is_integer != second.kind.is_integer or not _fits(forms, packed, pairs, adapters):
        return None
    forms.absorbed.add(made)
    source, norm = forms.before(x, made)
    out: Recorded = call.results
    pair: tuple[Tensor, Tensor] | None = None if biases is None else (biases[0], biases[1])
    activation = GATES[call.function]

    def make(place: Place) -> list[native.Operation]:
        operation = native.multiply_gate(
            *(place(source), first, second),
            out=place(out),
            norm=norm,
            biases=pair,
            activation=activation,
            pairs=None if pairs is None else pairs.packed,
        )
        return [operation]

    return NativeCall((source,), (out,), make)


def _packed(segments: Sequence[Any]) -> list[native.PackedWeight] | None:
    packed = [getattr(each, "packed", None) for each in segments]
    sound = [each for each in packed if isinstance(each, native.PackedWeight)]
    return sound if len(sound) == len(packed) else None


def _number(x: Any) -> float | None:
    """A factor that is the same for every step, learned ones of one entry included."""
    if isinstance(x, float | int):
        return float(x)
    is_one = isinstance(x, Tensor) and not isinstance(x, Recorded) and x.numel() == 1
    return float(x) if is_one and x.dtype == torch.float32 else None


def _norm_and_add(forms: Forms, call: Call, out: Recorded, residual: Recorded) -> NativeCall | None:
    del forms
    is_placed = is_matrix(call.args[0]) and is_matrix(residual)
    return _norm(call, out=out, residual=residual) if is_placed else None


def _product_and_add(
    forms: Forms, call: Call, out: Recorded, residual: Recorded
) -> NativeCall | None:
    return _product(forms, call, out=out, residual=residual) if is_matrix(residual) else None


# Operations that add what they make to something.
_ADDING: Final[Mapping[Any, Any]] = {
    project: _product_and_add,
    Tensor.mul: _multiply,
    mix_experts: mix_and_add,
    **dict.fromkeys(NORMS, _norm_and_add),
}
