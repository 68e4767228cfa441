"""Products with matrices of integers in groups of columns; on a GPU they are read as they are."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.gate import Gate
from cutaway.kernels.heads import HeadPlaces
from cutaway.kernels.integers import plain
from cutaway.kernels.integers.plain import separate, unpack
from cutaway.kernels.linear import can_follow, linear, number_gate
from cutaway.kernels.norm.late import LateNorm

__all__ = ["multiply", "multiply_normed", "separate", "unpack"]

_MOST_TOKENS = 64  # for which the matrix is unpacked in registers; beyond, once, for cuBLAS
_GROUPS = (32, 64, 128)  # columns that Triton's forms take


def multiply(
    x: Tensor,
    quants: Tensor,
    quant_scale: Tensor,
    zero: Tensor,
    *,
    has_nibbles: bool,
    following: Tensor | None = None,
) -> Tensor:
    """See plain.multiply.

    following: what a step reads behind it, if that is known: a card may begin to, meanwhile.
    """
    columns = quants.shape[1] * (2 if has_nibbles else 1)
    matrix = (quants, quant_scale, zero)
    if columns // quant_scale.shape[1] not in _GROUPS or not uses_triton(x, quant_scale):
        whole = plain.unpack(separate(quants, has_nibbles), quant_scale, zero)
        return linear(x, whole.to(x.dtype))
    from cutaway.kernels.integers import triton

    if 0 < x.numel() // columns <= _MOST_TOKENS:
        return triton.multiply(x, *matrix, has_nibbles=has_nibbles, following=following)
    return linear(x, triton.unpack(*matrix, has_nibbles=has_nibbles, dtype=x.dtype))


def multiply_normed(
    x: LateNorm,
    quants: Tensor,
    quant_scale: Tensor,
    zero: Tensor,
    *,
    has_nibbles: bool,
    after: Gate | HeadPlaces | None,
) -> Tensor | None:
    """multiply of a norm that the product takes on the way, in the same bits; None: it cannot.

    after: see NormingMatrix.
    """
    num_rows, num_groups = quant_scale.shape
    width = quants.shape[1] * 2
    if not has_nibbles or width // num_groups not in _GROUPS:
        return None
    if not can_follow(after) or not uses_triton(x.hidden, quant_scale):
        return None
    from cutaway.kernels.integers import triton_nibbles

    if not triton_nibbles.takes_norm(num_rows, width):
        return None
    return triton_nibbles.multiply_normed(x, quants, quant_scale, zero, after=number_gate(after))
