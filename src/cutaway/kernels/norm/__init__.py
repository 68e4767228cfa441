"""Normalization of hidden vectors, alone or of a sum that is wanted too."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.norm import plain, trainable
from cutaway.kernels.recording import operation

__all__ = [
    "add_offset_rms_norm",
    "add_rms_norm",
    "add_wide_rms_norm",
    "layer_norm",
    "offset_rms_norm",
    "rms_norm",
    "wide_rms_norm",
]


@operation()
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    """See plain.layer_norm."""
    return plain.layer_norm(x, weight, bias, epsilon)


@operation()
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See plain.rms_norm."""
    if uses_triton(x, weight):
        from cutaway.kernels.norm import triton

        return triton.norm(x, weight, epsilon, kind=triton.ROUNDED)
    if trainable.is_learned(x, weight):
        return trainable.rms_norm(x, weight, epsilon)
    return plain.rms_norm(x, weight, epsilon)


@operation()
def wide_rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """See plain.wide_rms_norm."""
    if uses_triton(x) and (weight is None or uses_triton(weight)):
        from cutaway.kernels.norm import triton

        return triton.norm(x, weight, epsilon, kind=triton.WIDE)
    return plain.wide_rms_norm(x, weight, epsilon)


@operation()
def offset_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See plain.offset_rms_norm."""
    if uses_triton(x, weight):
        from cutaway.kernels.norm import triton

        return triton.norm(x, weight, epsilon, kind=triton.OFFSET)
    return plain.offset_rms_norm(x, weight, epsilon)


def add_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + update and its rms_norm. Shapes: [..., D] each."""
    if uses_triton(x, update, weight):
        from cutaway.kernels.norm import triton

        return triton.add_norm(x, update, weight, epsilon, kind=triton.ROUNDED)
    return (total := x + update), rms_norm(total, weight, epsilon)


def add_wide_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + update and its wide_rms_norm. Shapes: [..., D] each."""
    if uses_triton(x, update, weight):
        from cutaway.kernels.norm import triton

        return triton.add_norm(x, update, weight, epsilon, kind=triton.WIDE)
    return (total := x + update), wide_rms_norm(total, weight, epsilon)


def add_offset_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + update and its offset_rms_norm. Shapes: [..., D] each."""
    if uses_triton(x, update, weight):
        from cutaway.kernels.norm import triton

        return triton.add_norm(x, update, weight, epsilon, kind=triton.OFFSET)
    return (total := x + update), offset_rms_norm(total, weight, epsilon)
