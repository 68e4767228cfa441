"""Native operations on rows: tables, norms, products and gates. Arguments are checked here."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import (
    NormWeights,
    Operation,
    address,
    norming,
    require,
    require_apart,
    require_heads,
    require_matrix,
    require_spaced,
    require_vector,
    tensors_of,
)
from cutaway.kernels.native.packed_pairs import PackedPairs
from cutaway.kernels.native.structs import Activation, Code, NormKind, Rows
from cutaway.kernels.native.weight import PackedWeight


def gather(table: PackedWeight, *, out: Tensor, multiplier: float = 1.0) -> Operation:
    """out[t] = multiplier * row token_ids[t] of the table. Shapes: table [V, D], out [T, D]."""
    require_matrix(out, table.num_columns)
    arguments = structs.GatherStruct(
        Rows.TOKENS, len(out), table.struct(), out.data_ptr(), multiplier
    )
    return Operation(Code.GATHER, arguments, (table.data, out))


def take(x: Tensor, *, out: Tensor) -> Operation:
    """out[r] = x[logit_rows[r]]. Shapes: x [T, D], out [R, D]."""
    width = x.shape[-1]
    require_matrix(x, width)
    require_matrix(out, width)
    arguments = structs.TakeStruct(
        Rows.LOGITS, len(out), x.data_ptr(), out.data_ptr(), width, len(x)
    )
    return Operation(Code.TAKE, arguments, (x, out))


def norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    *,
    out: Tensor,
    bias: Tensor | None = None,
    kind: NormKind = NormKind.RMS,
    add: Tensor | None = None,
    total: Tensor | None = None,
    residual: Tensor | None = None,
    rows: Rows = Rows.TOKENS,
) -> Operation:
    """out = residual + norm(x) * weight + bias; with add, total = x + add is normalized instead.

    Shapes: x, add, total, residual, out [rows, D], weight and bias [D]. total may be x. Rows of x
            may lie apart where nothing is added to them.
    """
    width = x.shape[-1]
    require_spaced(x, (len(x), width))
    for each in (out, add, total, residual):
        if each is not None:
            require_matrix(each, width, len(x))
    require((add is None) == (total is None), "add and total come together")
    require(kind is not NormKind.NONE, "a norm divides by something")
    if residual is not None:
        require_apart(residual, out)
    arguments = structs.NormStruct(
        *(rows, len(x), x.data_ptr(), x.stride(0), address(add), address(total)),
        norming(NormWeights(weight, epsilon, bias, kind), width),
        *(out.data_ptr(), width, address(residual)),
    )
    return Operation(Code.NORM, arguments, (x, add, total, weight, bias, out, residual))


def linear(
    x: Tensor,
    segments: Sequence[PackedWeight],
    *,
    out: Tensor,
    norm: NormWeights | None = None,
    biases: Sequence[Tensor | None] | None = None,
    residual: Tensor | None = None,
    rows: Rows = Rows.TOKENS,
    pairs: PackedPairs | None = None,
) -> Operation:
    """out = residual + (norm(x) times each segment transposed + bias), segments side by side.

    pairs: what each token's adapter adds to the products.
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
    arguments = structs.LinearStruct(
        rows=rows,
        capacity=len(x),
        x=x.data_ptr(),
        norm=norming(norm, width),
        num_segments=len(segments),
        residual=address(residual),
        out=out.data_ptr(),
    )
    if pairs is not None:
        arguments.pairs = pairs.struct([each.num_rows for each in segments], width)
    for index, (segment, bias) in enumerate(zip(segments, biases, strict=True)):
        require(segment.num_columns == width, "segments have equal columns")
        if bias is not None:
            require_vector(bias, segment.num_rows)
        arguments.segments[index] = segment.struct()
        arguments.biases[index] = address(bias)
    kept = (x, out, residual, *tensors_of(norm), *biases, *(pairs.kept if pairs else ()))
    return Operation(Code.LINEAR, arguments, (*kept, *(each.data for each in segments)))


def multiply_gate(
    x: Tensor,
    gate: PackedWeight,
    up: PackedWeight,
    *,
    out: Tensor,
    norm: NormWeights | None = None,
    biases: tuple[Tensor, Tensor] | None = None,
    activation: Activation = Activation.SILU,
    pairs: PackedPairs | None = None,
) -> Operation:
    """out = activation(gate) * up of the normalized x.

    pairs: what each token's adapter adds to gate and up.
    Shapes: x [T, D], weights [F, D], out [T, F].
    """
    shapes = {(each.num_rows, each.num_columns) for each in (gate, up)}
    require(len(shapes) == 1, "gate and up have one shape")
    require(gate.kind.is_integer == up.kind.is_integer, "gate and up are both integers, or neither")
    require_matrix(x, gate.num_columns)
    require_matrix(out, gate.num_rows, len(x))
    require_apart(x, out)
    for each in biases or ():
        require_vector(each, gate.num_rows)
    gate_bias, up_bias = biases or (None, None)
    arguments = structs.GatedStruct(
        *(Rows.TOKENS, len(x), x.data_ptr(), norming(norm, gate.num_columns)),
        *(gate.struct(), up.struct()),
        *(address(gate_bias), address(up_bias), out.data_ptr(), activation),
    )
    if pairs is not None:
        arguments.pairs = pairs.struct([gate.num_rows, up.num_rows], gate.num_columns)
    kept = (x, out, *tensors_of(norm), gate_bias, up_bias, gate.data, up.data)
    kept = (*kept, *(pairs.kept if pairs else ()))
    return Operation(Code.GATED, arguments, kept)


def gate(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    out: Tensor,
    activation: Activation = Activation.SILU,
    cap: float | None = None,
    multiplier: float = 1.0,
    residual: Tensor | None = None,
    rows: Rows = Rows.TOKENS,
) -> Operation:
    """out = residual + multiplier * activation(gate) * up, any but gate left out.

    Rows of gate and up may lie apart, and so may heads. A gate of one column stands for all F.

    cap: of Activation.CAPPED.
    Shapes: gate and up [rows, F] or [rows, H, F], gate also [rows, H, 1]; residual and out
    [rows, H * F] or as gate.
    """
    capacity, num_heads, width = _heads(gate if up is None else up).shape
    gate_heads = _heads(gate)
    is_scalar = gate_heads.shape[2] == 1 and width > 1
    require(activation is not Activation.CLAMPED, "the clamped gate belongs to experts")
    require((activation is Activation.CAPPED) == (cap is not None), "a cap belongs to CAPPED")
    require_matrix(out.flatten(1), num_heads * width, capacity)
    if residual is not None:
        require_matrix(residual.flatten(1), num_heads * width, capacity)
    require_heads(gate_heads, (capacity, num_heads, 1 if is_scalar else width))
    up_heads = gate_heads if up is None else _heads(up)
    if up is not None:
        require_heads(up_heads, (capacity, num_heads, width))
    arguments = structs.GateStruct(
        *(rows, capacity, gate.data_ptr(), address(up)),
        *(gate_heads.stride(0), up_heads.stride(0), gate_heads.stride(1), up_heads.stride(1)),
        *(num_heads, width, int(is_scalar), activation, cap or 0.0, multiplier),
        *(address(residual), out.data_ptr()),
    )
    return Operation(Code.GATE, arguments, (gate, up, residual, out))


def _heads(x: Tensor) -> Tensor:
    """Rows as rows of one head where they have none. Shapes: [rows, F] -> [rows, 1, F]."""
    if x.dim() == 3:
        return x
    return x.as_strided((len(x), 1, x.shape[1]), (x.stride(0), max(x.shape[1], 1), x.stride(1)))
