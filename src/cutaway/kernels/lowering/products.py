"""Native forms of what goes row by row: lookup, norms, products, sums and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.gate import gelu_tanh_gate, silu_gate
from cutaway.kernels.linear import project, take_rows
from cutaway.kernels.lowering.forms import (
    NORM_WEIGHTS,
    Forms,
    NativeCall,
    Place,
    norm_of,
    present,
)
from cutaway.kernels.lowering.rows import is_matrix, is_spaced, rows_of, start_of
from cutaway.kernels.native.structs import MAX_SEGMENTS, Rows
from cutaway.kernels.recording import Call, Recorded

ACTIVATIONS: Final[Mapping[Any, native.Activation]] = {
    silu_gate: native.Activation.SILU,
    gelu_tanh_gate: native.Activation.GELU_TANH,
}


def gather(forms: Forms, call: Call, table: Any, ids: Any) -> NativeCall | None:
    """Rows of a packed table by the step's tokens."""
    return _gather(forms, table, ids, out=call.results)


def scale(forms: Forms, call: Call, x: Any, factor: Any) -> NativeCall | None:
    """Rows of a table times a number."""
    made = x.call if isinstance(x, Recorded) else None
    if made is None or made.function is not take_rows or not isinstance(factor, float):
        return None
    if not forms.goes_only_to(x, call):
        return None
    lowered = _gather(forms, *made.args, multiplier=factor, out=call.results)
    if lowered is not None:
        forms.absorbed.add(made)
    return lowered


def take(forms: Forms, call: Call, x: Any, index: Any) -> NativeCall | None:
    """The rows of which logits are wanted."""
    if index is not forms.step.logit_rows or not is_matrix(x) or rows_of(x) is Rows.LOGITS:
        return None
    out: Recorded = call.results
    return NativeCall((x,), (out,), lambda place: [native.take(place(x), out=place(out))])


def norm(forms: Forms, call: Call, x: Any, *_: Any) -> NativeCall | None:
    """A norm that is wanted itself."""
    del forms
    return _norm(call, out=call.results) if is_matrix(x) else None


def product(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """Products with packed segments; what they read may be normed first."""
    return _product(forms, call, out=call.results)


def add(forms: Forms, call: Call, first: Any, second: Any) -> NativeCall | None:
    """A sum of which one side is a product, or a norm, that nothing else reads."""
    if not (is_matrix(first) and is_matrix(second)) or first.shape != second.shape:
        return None
    for residual, update in ((first, second), (second, first)):
        made = update.call
        if made is None or update.root is not update or not forms.goes_only_to(update, call):
            continue
        lowered = None
        if made.function is project:
            lowered = _product(forms, made, out=call.results, residual=residual)
        elif made.function in NORM_WEIGHTS and is_matrix(made.args[0]):
            lowered = _norm(made, out=call.results, residual=residual)
        if lowered is not None:
            forms.absorbed.add(made)
            return lowered
    return None


def gate(forms: Forms, call: Call, gate: Any, up: Any) -> NativeCall | None:
    """An activated gate, with the product of both sides where nothing else reads it."""
    is_placed = is_spaced(gate) and is_spaced(up) and gate.dim() == 2 and gate.shape == up.shape
    if not is_placed or rows_of(gate) is not Rows.TOKENS:
        return None
    fused = _gated(forms, call, gate, up)
    if fused is not None:
        return fused
    out: Recorded = call.results
    activation = ACTIVATIONS[call.function]

    def make(place: Place) -> list[native.Operation]:
        return [native.gate(place(gate), place(up), out=place(out), activation=activation)]

    return NativeCall((gate, up), (out,), make)


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
        added = None if residual is None else place(residual)
        operation = native.norm(
            *(place(x), norm.weight, norm.epsilon),
            out=place(out),
            residual=added,
            rows=rows_of(x),
        )
        return [operation]

    return NativeCall(present(x, residual), (out,), make)


def _product(
    forms: Forms, call: Call, *, out: Recorded, residual: Recorded | None = None
) -> NativeCall | None:
    x, segments, biases = call.args
    packed = _packed(segments)
    if packed is None or len(packed) > MAX_SEGMENTS or not is_matrix(x):
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
        )
        return [operation]

    return NativeCall(present(source, residual), (out,), make)


def _gated(forms: Forms, call: Call, gate: Recorded, up: Recorded) -> NativeCall | None:
    """Both sides are the halves of one product, each a segment of it."""
    both, made, width = gate.root, gate.root.call, gate.shape[1]
    if made is None or made.function is not project or up.root is not both:
        return None
    x, segments, biases = made.args
    packed, starts = _packed(segments), (start_of(gate), start_of(up))
    if starts != (0, width) or not forms.goes_only_to(both, call) or not is_matrix(x):
        return None
    if packed is None or [each.num_rows for each in packed] != [width, width]:
        return None
    first, second = packed
    if first.kind.is_integer != second.kind.is_integer:
        return None
    forms.absorbed.add(made)
    source, norm = forms.before(x, made)
    out: Recorded = call.results
    pair: tuple[Tensor, Tensor] | None = None if biases is None else (biases[0], biases[1])
    activation = ACTIVATIONS[call.function]

    def make(place: Place) -> list[native.Operation]:
        operation = native.gated(
            *(place(source), first, second),
            out=place(out),
            norm=norm,
            biases=pair,
            activation=activation,
        )
        return [operation]

    return NativeCall((source,), (out,), make)


def _packed(segments: Sequence[Any]) -> list[native.PackedWeight] | None:
    packed = [getattr(each, "packed", None) for each in segments]
    sound = [each for each in packed if isinstance(each, native.PackedWeight)]
    return sound if len(sound) == len(packed) else None
