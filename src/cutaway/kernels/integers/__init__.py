"""Products with matrices of integers in groups of columns; on a GPU they are read as they are."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.integers import plain
from cutaway.kernels.integers.plain import separate, unpack
from cutaway.kernels.linear import linear

__all__ = ["multiply", "separate", "unpack"]

_MOST_TOKENS = 64  # for which the matrix is unpacked in registers; beyond, once, for cuBLAS
_GROUPS = (32, 64, 128)  # columns that Triton's forms take


def multiply(
    x: Tensor, quants: Tensor, quant_scale: Tensor, zero: Tensor, *, has_nibbles: bool
) -> Tensor:
    """See plain.multiply."""
    columns = quants.shape[1] * (2 if has_nibbles else 1)
    matrix = (quants, quant_scale, zero)
    if columns // quant_scale.shape[1] not in _GROUPS or not uses_triton(x, quant_scale):
        whole = plain.unpack(separate(quants, has_nibbles), quant_scale, zero)
        return linear(x, whole.to(x.dtype))
    from cutaway.kernels.integers import triton

    if 0 < x.numel() // columns <= _MOST_TOKENS:
        return triton.multiply(x, *matrix, has_nibbles=has_nibbles)
    return linear(x, triton.unpack(*matrix, has_nibbles=has_nibbles, dtype=x.dtype))
