"""Rotation of query and key pairs by position."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.kernels.dispatch import TRITON_DTYPES, has_triton
from cutaway.kernels.recording import operation
from cutaway.kernels.rotary import plain

__all__ = ["cosines", "rotate", "rotate_neighbours"]


@operation()
def cosines(
    positions: Tensor, inverse: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See plain.cosines."""
    if positions.is_cuda and dtype in TRITON_DTYPES and has_triton():
        from cutaway.kernels.rotary import triton

        return triton.cosines(positions, inverse, factor, dtype)
    return plain.cosines(positions, inverse, factor, dtype)


@operation()
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See plain.rotate."""
    return plain.rotate(x, cos, sin)


@operation()
def rotate_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See plain.rotate_neighbours."""
    return plain.rotate_neighbours(x, cos, sin)
