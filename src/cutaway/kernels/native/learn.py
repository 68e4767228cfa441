"""Kernels of training over whole tensors, forward and gradient, on torch's own threads.

float32 on the CPU. Not operations of a program: nothing is recorded, and threads are torch's, since
products between them are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.host import processor
from cutaway.kernels.native.library import (
    check,
    is_available,
    isa,
    library,
    multiplies_in_training,
    runs_training,
)
from cutaway.kernels.native.operation import address, require, require_matrix, require_vector
from cutaway.kernels.native.structs import Activation

_ROWS_OF_BLOCK = 64  # whose part of a weight's gradient is summed alone
_LANES = 16
_MOST_HEAD_SIZE = 512
_LEAST_ROWS = 64  # to be multiplied: a matrix is packed for them


class OwnHeads(NamedTuple):
    """Queries, keys and values of sequences that attend to themselves.

    Rows may lie apart. Shapes: query [T, H, C], key and value [T, G, C], C a multiple of 16.
    """

    query: Tensor
    key: Tensor
    value: Tensor


@cache
def learns() -> bool:
    """Whether the library has these kernels; one that was built before has not."""
    return is_available() and runs_training(library())


def takes(*tensors: Tensor) -> bool:
    """Whether these kernels compute with tensors as they are; torch's compiler fuses its own."""
    if torch.compiler.is_compiling() or not learns():
        return False
    return all([each.is_cpu and each.dtype == torch.float32 for each in tensors])


def takes_heads(heads: OwnHeads) -> bool:
    """Whether attention takes heads as they lie."""
    size = heads.query.shape[-1]
    fits = size % _LANES == 0 and 0 < size <= _MOST_HEAD_SIZE and heads.value.shape[-1] == size
    is_whole = all(each.stride()[1:] == (size, 1) and each.stride(0) >= size for each in heads)
    return fits and is_whole and takes(*heads)


@cache
def _multiplies() -> bool:
    """Whether products here are faster than torch's.

    Measured: they are where torch's library computes with AVX2, which on AMD it does whatever the
    processor has.
    """
    if not (learns() and multiplies_in_training(library())):
        return False
    return isa() == "avx2" or (isa().startswith("avx512") and processor.is_amd())


def takes_products(x: Tensor, *parameters: Tensor) -> bool:
    """Whether these kernels multiply rows with matrices, and have the gradients of both."""
    if not takes(x, *parameters) or not _multiplies():
        return False
    shape = x.shape
    is_matrix = len(shape) == 2 and shape[0] >= _LEAST_ROWS and shape[1] > 0
    return is_matrix and all([each.shape[0] for each in parameters])


def multiply_rows(
    x: Tensor, matrix: Tensor, bias: Tensor | None = None, *, is_turned: bool
) -> Tensor:
    """x times a matrix, or the turned one, plus a bias.

    Shapes: x [T, K], matrix [K, N] or turned [N, K], bias [N] -> [T, N].
    """
    rows, depth = x.shape
    width = matrix.shape[0 if is_turned else 1]
    require_matrix(x, depth)
    require_matrix(matrix, depth if is_turned else width, width if is_turned else depth)
    if bias is not None:
        require_vector(bias, width)
    out = x.new_empty(rows, width)
    places = (x.data_ptr(), matrix.data_ptr(), address(bias), out.data_ptr())
    check(library().cw_learn_rows(rows, depth, width, is_turned, *places, *_team()))
    return out


def multiply_columns(left: Tensor, right: Tensor, *, sums: bool) -> tuple[Tensor, Tensor | None]:
    """left, turned, times right; and the sums of left's columns where they are wanted.

    Shapes: left [T, N], right [T, K] -> [N, K], [N].
    """
    (rows, height), width = left.shape, right.shape[1]
    require_matrix(left, height)
    require_matrix(right, width, rows)
    out = left.new_empty(height, width)
    totals = left.new_empty(height) if sums else None
    places = (left.data_ptr(), right.data_ptr(), out.data_ptr(), address(totals))
    check(library().cw_learn_columns(rows, height, width, *places, *_team()))
    return out, totals


def curve(kind: Activation, x: Tensor, grad: Tensor | None = None) -> Tensor:
    """An activation of each entry, or its gradient. Shapes: x, grad [T, F] -> [T, F]."""
    return _curve(kind, x, grad, is_gate=False)


def gate_sides(kind: Activation, sides: Tensor, grad: Tensor | None = None) -> Tensor:
    """The first half of each row, activated, times the second; or the gradient of both.

    Shapes: sides [T, 2 F] -> [T, F]; with grad [T, F] -> [T, 2 F].
    """
    return _curve(kind, sides, grad, is_gate=True)


def _curve(kind: Activation, x: Tensor, grad: Tensor | None, *, is_gate: bool) -> Tensor:
    rows, wide = x.shape
    width = wide // 2 if is_gate else wide
    require_matrix(x, wide)
    if grad is not None:
        require_matrix(grad, width, rows)
    out = x.new_empty(rows, width) if grad is None else torch.empty_like(x)
    places = (x.data_ptr(), address(grad), out.data_ptr())
    check(library().cw_learn_curve(kind, is_gate, rows, width, *places, *_team()))
    return out


def rms_gradients(x: Tensor, weight: Tensor, epsilon: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """What a gradient becomes behind x over each row's root mean square, times weight.

    Shapes: x, grad [T, D], weight [D] -> of x [T, D], of weight [D].
    """
    rows, width = x.shape
    require_matrix(x, width)
    require_matrix(grad, width, rows)
    require_vector(weight, width)
    out = torch.empty_like(x)
    parts = x.new_empty(-(-rows // _ROWS_OF_BLOCK), width)
    places = [each.data_ptr() for each in (x, weight, grad, out, parts)]
    check(library().cw_learn_rms(rows, width, epsilon, *places, *_team()))
    return out, parts.sum(0)


def own_attention(heads: OwnHeads, lengths: Sequence[int], scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention within each sequence, and what its gradient needs.

    lengths: tokens of each sequence, T in all.
    Shapes: -> [T, H, C], and the log of each row's sum of exponentials [T, H].
    """
    query = heads.query
    out, sums = query.new_empty(query.shape), query.new_empty(query.shape[:2])
    _attend(heads, lengths, scale, out, sums, (None, None, None, None))
    return out, sums


def own_attention_gradients(
    heads: OwnHeads,
    lengths: Sequence[int],
    scale: float,
    made: tuple[Tensor, Tensor],
    grad: Tensor,
) -> OwnHeads:
    """What a gradient becomes behind own_attention, which made what is given.

    Shapes: grad [T, H, C] -> of query [T, H, C], of key and value [T, G, C].
    """
    require(grad.shape == heads.query.shape and grad.is_contiguous(), "a gradient of each entry")
    found = OwnHeads(*(each.new_empty(each.shape) for each in heads))
    _attend(heads, lengths, scale, *made, (grad, *found))
    return found


def _attend(
    heads: OwnHeads,
    lengths: Sequence[int],
    scale: float,
    out: Tensor,
    sums: Tensor,
    pulls: tuple[Tensor | None, ...],
) -> None:
    query, key, value = heads
    num_tokens, num_heads, size = query.shape
    num_groups = key.shape[1]
    require(takes_heads(heads), "heads of float32 lie whole in their rows")
    require(key.shape == value.shape == (num_tokens, num_groups, size), "keys beside values")
    require(sum(lengths) == num_tokens and min(lengths) > 0, "each token is in one sequence")
    starts = (ctypes.c_int64 * (len(lengths) + 1))(0, *accumulate(lengths))
    sides = [number for each in heads for number in (each.data_ptr(), each.stride(0))]
    places = (out.data_ptr(), sums.data_ptr(), *map(address, pulls))
    shape = (len(lengths), starts, num_heads, num_groups, size)
    check(library().cw_learn_attention(*shape, scale, *sides, *places, *_team()))


def _team() -> tuple[int, int | None]:
    """How many threads torch computes with, and what runs a function on that many of its own."""
    count = torch.get_num_threads()
    return (count, _openmp()) if count > 1 else (1, None)


@cache
def _openmp() -> int | None:
    """GOMP_parallel of the library whose threads torch uses; None where it has other ones.

    Threads of our own would wait for work on the very cores on which torch's wait for theirs.
    """
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            found = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(found, ctypes.c_void_p).value
    return None
