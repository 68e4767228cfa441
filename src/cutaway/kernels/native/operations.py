"""Native operations on rows: tables, norms, products and gates. Arguments are checked here."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import (
    Norm,
    Operation,
    address,
    require,
    require_apart,
    require_matrix,
    require_spaced,
    require_vector,
)
from cutaway.kernels.native.structs import Activation, Code, Rows
from cutaway.kernels.native.weight import PackedWeight


def gather(table: PackedWeight, *, out: Tensor, multiplier: float = 1.0) -> Operation:
    """out[t] = multiplier * row token_ids[t] of the table. Shapes: table [V, D], out [T, D]."""
    require_matrix(out, table.num_columns)
    arguments = structs.Gather(Rows.TOKENS, len(out), table.struct(), out.data_ptr(), multiplier)
    return Operation(Code.GATHER, arguments, (table.data, out))


def take(x: Tensor, *, out: Tensor) -> Operation:
    """out[r] = x[logit_rows[r]]. Shapes: x [T, D], out [R, D]."""
    width = x.shape[-1]
    require_matrix(x, width)
    require_matrix(out, width)
    arguments = structs.Take(Rows.LOGITS, len(out), x.data_ptr(), out.data_ptr(), width, len(x))
    return Operation(Code.TAKE, arguments, (x, out))


def norm(
    x: Tensor,
    weight: Tensor,
    epsilon: float,
    *,
    out: Tensor,
    add: Tensor | None = None,
    total: Tensor | None = None,
    residual: Tensor | None = None,
    rows: Rows = Rows.TOKENS,
) -> Operation:
    """out = residual + rms_norm(x) * weight; with add, total = x + add is normalized instead.

    Shapes: x, add, total, residual, out [rows, D], weight [D]. total may be x.
    """
    width = x.shape[-1]
    for each in (x, out, add, total, residual):
        if each is not None:
            require_matrix(each, width, len(x))
    require_vector(weight, width)
    require((add is None) == (total is None), "add and total come together")
    if residual is not None:
        require_apart(residual, out)
    arguments = structs.NormStruct(
        *(rows, len(x), x.data_ptr(), address(add), address(total)),
        *(weight.data_ptr(), out.data_ptr(), width, epsilon, address(residual)),
    )
    return Operation(Code.NORM, arguments, (x, add, total, weight, out, residual))


def linear(
    x: Tensor,
    segments: Sequence[PackedWeight],
    *,
    out: Tensor,
    norm: Norm | None = None,
    biases: Sequence[Tensor | None] | None = None,
    residual: Tensor | None = None,
    rows: Rows = Rows.TOKENS,
) -> Operation:
    """out = residual + (norm(x) times each segment transposed + bias), segments side by side.

    Shapes: x [rows, K], segments [N_i, K], biases [N_i], residual and out [rows, sum of N_i].
    residual may be out.
    """
    require(0 < len(segments) <= structs.MAX_SEGMENTS, "a linear has one to four segments")
    biases = [None] * len(segments) if biases is None else biases
    width = segments[0].num_columns
    require_matrix(x, width)
    require_matrix(out, sum(each.num_rows for each in segments), len(x))
    require_apart(x, out)
    if residual is not None:
        require_matrix(residual, out.shape[1], len(x))
    if norm is not None:
        require_vector(norm.weight, width)
    arguments = structs.Linear(
        rows=rows,
        capacity=len(x),
        x=x.data_ptr(),
        norm_weight=address(norm.weight if norm else None),
        epsilon=norm.epsilon if norm else 0.0,
        num_segments=len(segments),
        residual=address(residual),
        out=out.data_ptr(),
    )
    for index, (segment, bias) in enumerate(zip(segments, biases, strict=True)):
        require(segment.num_columns == width, "segments have equal columns")
        if bias is not None:
            require_vector(bias, segment.num_rows)
        arguments.segments[index] = segment.struct()
        arguments.biases[index] = address(bias)
    kept = (x, out, residual, norm.weight if norm else None, *biases)
    return Operation(Code.LINEAR, arguments, (*kept, *(each.data for each in segments)))


def gated(
    x: Tensor,
    gate: PackedWeight,
    up: PackedWeight,
    *,
    out: Tensor,
    norm: Norm | None = None,
    biases: tuple[Tensor, Tensor] | None = None,
    activation: Activation = Activation.SILU,
) -> Operation:
    """out = activation(gate) * up of the normalized x.

    Shapes: x [T, D], weights [F, D], out [T, F].
    """
    shapes = {(each.num_rows, each.num_columns) for each in (gate, up)}
    require(len(shapes) == 1, "gate and up have one shape")
    require(
        gate.kind.is_integer == up.kind.is_integer, "gate and up are both integers, or neither"
    )
    require_matrix(x, gate.num_columns)
    require_matrix(out, gate.num_rows, len(x))
    require_apart(x, out)
    for each in biases or ():
        require_vector(each, gate.num_rows)
    if norm is not None:
        require_vector(norm.weight, gate.num_columns)
    gate_bias, up_bias = biases or (None, None)
    arguments = structs.Gated(
        *(Rows.TOKENS, len(x), x.data_ptr(), address(norm.weight if norm else None)),
        *(norm.epsilon if norm else 0.0, gate.struct(), up.struct()),
        *(address(gate_bias), address(up_bias), out.data_ptr(), activation),
    )
    kept = (x, out, norm.weight if norm else None, gate_bias, up_bias, gate.data, up.data)
    return Operation(Code.GATED, arguments, kept)


def gate(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    out: Tensor,
    activation: Activation = Activation.SILU,
) -> Operation:
    """out = activation(gate) * up, or the activation alone.

    Shapes: [T, F] each; rows of gate and up may lie apart.
    """
    rows, width = gate.shape
    require(activation is not Activation.CLAMPED, "the clamped gate belongs to experts")
    require_matrix(out, width, rows)
    for each in (gate, up):
        if each is not None:
            require_spaced(each, (rows, width))
    arguments = structs.Gate(
        *(Rows.TOKENS, rows, gate.data_ptr(), address(up)),
        *(gate.stride(0), width if up is None else up.stride(0), out.data_ptr(), width, activation),
    )
    return Operation(Code.GATE, arguments, (gate, up, out))
