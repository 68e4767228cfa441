"""Rotation of query and key pairs by position."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

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
    if x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return cast(Tensor, _Turned.apply(x, cos, sin))
    return plain.rotate(x, cos, sin)


@operation()
def rotate_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See plain.rotate_neighbours."""
    return plain.rotate_neighbours(x, cos, sin)


class _Turned(Function):
    """A gradient is turned back, as a whole: of each part alone it would be as wide as x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return plain.rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grads[0], cos, -sin), None, None
