"""Native operations as data: arguments checked here, to be run now or recorded in a program.

Every tensor is float32 on the CPU unless said otherwise. Rows of buffers are room: a step uses
as many as it has. Letters as in native/cutaway.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.pages import Pages
from cutaway.kernels.native.structs import Activation, Code, Rows
from cutaway.kernels.native.weight import PackedWeight


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a native kernel, and what must stay in memory while it may run."""

    code: Code
    arguments: ctypes.Structure
    kept: tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Norm:
    """RMS norm before an operation. Shapes: weight [K]."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines [rows, C'/2]: one row per position, or per token of the step."""

    cos: Tensor
    sin: Tensor
    is_by_token: bool = False


@dataclass(frozen=True)
class Scoring:
    """How products of queries and keys become scores, and which of them count.

    cap:    scores become cap * tanh(score / cap).
    window: keys that a query sees, its own included.
    """

    softmax_scale: float
    cap: float | None = None
    window: int | None = None


def gather(table: PackedWeight, *, out: Tensor, multiplier: float = 1.0) -> Operation:
    """out[t] = multiplier * row token_ids[t] of the table. Shapes: table [V, D], out [T, D]."""
    _require_matrix(out, table.num_columns)
    arguments = structs.Gather(Rows.TOKENS, len(out), table.struct(), out.data_ptr(), multiplier)
    return Operation(Code.GATHER, arguments, (table.data, out))


def take(x: Tensor, *, out: Tensor) -> Operation:
    """out[r] = x[logit_rows[r]]. Shapes: x [T, D], out [R, D]."""
    width = x.shape[-1]
    _require_matrix(x, width)
    _require_matrix(out, width)
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
            _require_matrix(each, width, len(x))
    _require_vector(weight, width)
    _require((add is None) == (total is None), "add and total come together")
    if residual is not None:
        _require_apart(residual, out)
    arguments = structs.NormStruct(
        *(rows, len(x), x.data_ptr(), _address(add), _address(total)),
        *(weight.data_ptr(), out.data_ptr(), width, epsilon, _address(residual)),
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
    _require(0 < len(segments) <= structs.MAX_SEGMENTS, "a linear has one to four segments")
    biases = [None] * len(segments) if biases is None else biases
    width = segments[0].num_columns
    _require_matrix(x, width)
    _require_matrix(out, sum(each.num_rows for each in segments), len(x))
    _require_apart(x, out)
    if residual is not None:
        _require_matrix(residual, out.shape[1], len(x))
    if norm is not None:
        _require_vector(norm.weight, width)
    arguments = structs.Linear(
        rows=rows,
        capacity=len(x),
        x=x.data_ptr(),
        norm_weight=_address(norm.weight if norm else None),
        epsilon=norm.epsilon if norm else 0.0,
        num_segments=len(segments),
        residual=_address(residual),
        out=out.data_ptr(),
    )
    for index, (segment, bias) in enumerate(zip(segments, biases, strict=True)):
        _require(segment.num_columns == width, "segments have equal columns")
        if bias is not None:
            _require_vector(bias, segment.num_rows)
        arguments.segments[index] = segment.struct()
        arguments.biases[index] = _address(bias)
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
    _require(len(shapes) == 1, "gate and up have one shape")
    _require(
        gate.kind.is_integer == up.kind.is_integer, "gate and up are both integers, or neither"
    )
    _require_matrix(x, gate.num_columns)
    _require_matrix(out, gate.num_rows, len(x))
    _require_apart(x, out)
    for each in biases or ():
        _require_vector(each, gate.num_rows)
    if norm is not None:
        _require_vector(norm.weight, gate.num_columns)
    gate_bias, up_bias = biases or (None, None)
    arguments = structs.Gated(
        *(Rows.TOKENS, len(x), x.data_ptr(), _address(norm.weight if norm else None)),
        *(norm.epsilon if norm else 0.0, gate.struct(), up.struct()),
        *(_address(gate_bias), _address(up_bias), out.data_ptr(), activation),
    )
    kept = (x, out, norm.weight if norm else None, gate_bias, up_bias, gate.data, up.data)
    return Operation(Code.GATED, arguments, kept)


def gate(
    gate: Tensor, up: Tensor, *, out: Tensor, activation: Activation = Activation.SILU
) -> Operation:
    """out = activation(gate) * up. Shapes: [T, F] each; rows of gate and up may lie apart."""
    rows, width = gate.shape
    _require_matrix(out, width, rows)
    for each in (gate, up):
        _require_spaced(each, (rows, width))
    arguments = structs.Gate(
        *(Rows.TOKENS, rows, gate.data_ptr(), up.data_ptr()),
        *(gate.stride(0), up.stride(0), out.data_ptr(), width, activation),
    )
    return Operation(Code.GATE, arguments, (gate, up, out))


def rotate(x: Tensor, rotation: Rotation, *, out: Tensor, norm: Norm | None = None) -> Operation:
    """Heads of x, normalized if asked, turned by position. Shapes: x, out [T, heads, C]."""
    rows, num_heads, head_size = x.shape
    _require_spaced(x, (rows, num_heads, head_size))
    _require_spaced(out, (rows, num_heads, head_size))
    if norm is not None:
        _require_vector(norm.weight, head_size)
    arguments = structs.Rotate(
        *(Rows.TOKENS, rows, x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0)),
        *(num_heads, head_size, _address(norm.weight if norm else None)),
        *(norm.epsilon if norm else 0.0, _rotation(rotation, head_size)),
    )
    kept = (x, out, norm.weight if norm else None, rotation.cos, rotation.sin)
    return Operation(Code.ROTATE, arguments, kept)


def store(key: Tensor, value: Tensor, pages: Pages) -> Operation:
    """Write the step's keys and values to their slots. Shapes: key, value [T, G, C]."""
    for each in (key, value):
        _require_spaced(each, (len(key), *pages.keys.shape[2:]))
    arguments = structs.Store(
        *(Rows.TOKENS, len(key), key.data_ptr(), value.data_ptr()),
        *(key.stride(0), value.stride(0), pages.struct()),
    )
    return Operation(Code.STORE, arguments, (key, value, *pages.tensors))


def attend(query: Tensor, pages: Pages, *, out: Tensor, scoring: Scoring) -> Operation:
    """Causal attention of each sequence's last tokens over its pages.

    Shapes: query [T, H, C], out [T, H, C] or [T, H * C]; H is a multiple of G.
    """
    rows, num_heads, head_size = query.shape
    _require_spaced(query, (rows, num_heads, head_size))
    _require_matrix(out.flatten(1), num_heads * head_size, rows)
    _require_heads(num_heads, head_size, pages)
    arguments = structs.Attend(
        *(Rows.TOKENS, rows, query.data_ptr(), query.stride(0), num_heads),
        *(_scoring(scoring), pages.struct(), out.data_ptr()),
    )
    return Operation(Code.ATTEND, arguments, (query, out, *pages.tensors))


def attention(
    qkv: Tensor,
    pages: Pages,
    *,
    num_heads: int,
    rotation: Rotation,
    out: Tensor,
    scoring: Scoring,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
) -> Operation:
    """rotate, store and attend in one: bit for bit what the three give one after another.

    Shapes: qkv [T, (H + 2 G) * C], query heads first, out [T, H * C].
    """
    num_groups, head_size = pages.keys.shape[2:]
    _require_matrix(qkv, (num_heads + 2 * num_groups) * head_size)
    _require_matrix(out, num_heads * head_size, len(qkv))
    _require_heads(num_heads, head_size, pages)
    norms = [each for each in (query_norm, key_norm) if each is not None]
    for each in norms:
        _require_vector(each.weight, head_size)
    _require(len({each.epsilon for each in norms}) <= 1, "both norms have one epsilon")
    query_weight = query_norm.weight if query_norm else None
    key_weight = key_norm.weight if key_norm else None
    arguments = structs.Attention(
        *(Rows.TOKENS, len(qkv), qkv.data_ptr(), num_heads, _scoring(scoring)),
        *(_address(query_weight), _address(key_weight), norms[0].epsilon if norms else 0.0),
        *(_rotation(rotation, head_size), pages.struct(), out.data_ptr()),
    )
    kept = (qkv, out, *pages.tensors, rotation.cos, rotation.sin)
    return Operation(Code.ATTENTION, arguments, (*kept, query_weight, key_weight))


def _rotation(rotation: Rotation, head_size: int) -> structs.RotationStruct:
    rows, half = rotation.cos.shape
    _require_matrix(rotation.cos, half)
    _require_matrix(rotation.sin, half, rows)
    _require(2 * half <= head_size, "no more pairs turn than a head has")
    return structs.RotationStruct(
        *(rotation.cos.data_ptr(), rotation.sin.data_ptr()),
        *(rows, half, int(rotation.is_by_token)),
    )


def _scoring(scoring: Scoring) -> structs.ScoringStruct:
    return structs.ScoringStruct(scoring.softmax_scale, scoring.cap or 0.0, scoring.window or 0)


def _require(is_met: bool, sentence: str) -> None:
    """Raise our own fault, also where assertions are off: a wrong pointer would follow."""
    if not is_met:
        raise AssertionError(sentence)


def _require_float(x: Tensor) -> None:
    is_sound = x.dtype == torch.float32 and x.device.type == "cpu"
    _require(is_sound, f"a tensor is {x.dtype} on {x.device}; native kernels take float32 on cpu")


def _require_matrix(x: Tensor, width: int, rows: int | None = None) -> None:
    """Contiguous float32 [rows, width]; any number of rows from 1 where none is given."""
    _require_float(x)
    is_sound = x.dim() == 2 and x.shape[1] == width and x.is_contiguous() and len(x) > 0
    is_sound = is_sound and (rows is None or len(x) == rows)
    _require(is_sound, f"shape {tuple(x.shape)} is not a contiguous [{rows or 'rows'}, {width}]")


def _require_vector(x: Tensor, width: int) -> None:
    _require_float(x)
    is_sound = x.shape == (width,) and x.is_contiguous()
    _require(is_sound, f"shape {tuple(x.shape)} is not a contiguous [{width}]")


def _require_spaced(x: Tensor, shape: tuple[int, ...]) -> None:
    """Rows may lie apart; inside a row all is contiguous, and rows do not overlap."""
    _require_float(x)
    _require(tuple(x.shape) == shape and shape[0] > 0, f"shape {tuple(x.shape)} is not {shape}")
    inner = 1
    for size, stride in zip(reversed(shape[1:]), reversed(x.stride()[1:]), strict=True):
        _require(size == 1 or stride == inner, "a row is not contiguous")
        inner *= size
    _require(x.stride(0) >= inner, "rows overlap")


def _require_apart(x: Tensor, out: Tensor) -> None:
    begin, end = x.data_ptr(), x.data_ptr() + x.nbytes
    is_apart = out.data_ptr() >= end or out.data_ptr() + out.nbytes <= begin
    _require(is_apart, "input and output of a product share memory")


def _require_heads(num_heads: int, head_size: int, pages: Pages) -> None:
    num_groups, page_head_size = pages.keys.shape[2:]
    _require(num_heads % num_groups == 0, "query heads are a multiple of key-value heads")
    _require(head_size == page_head_size, "query and pages have one head size")


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
