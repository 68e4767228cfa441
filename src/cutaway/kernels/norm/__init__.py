"""Normalization of hidden vectors, alone or of a sum that is wanted too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cutaway.kernels.dispatch import learns_in_triton, uses_triton
from cutaway.kernels.norm import plain, trainable
from cutaway.kernels.norm.late import NormKind, kind_number
from cutaway.kernels.recording import operation

__all__ = [
    "add_norm_for_products",
    "add_offset_rms_norm",
    "add_rms_norm",
    "add_wide_rms_norm",
    "layer_norm",
    "norm_for_products",
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
    found = _in_triton(x, weight, epsilon, "rounded")
    if found is not None:
        return found
    if trainable.is_learned(x, weight):
        return trainable.rms_norm(x, weight, epsilon)
    return plain.rms_norm(x, weight, epsilon)


@operation()
def wide_rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """See plain.wide_rms_norm."""
    found = _in_triton(x, weight, epsilon, "wide")
    return plain.wide_rms_norm(x, weight, epsilon) if found is None else found


@operation()
def offset_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See plain.offset_rms_norm."""
    found = _in_triton(x, weight, epsilon, "offset")
    return plain.offset_rms_norm(x, weight, epsilon) if found is None else found


def norm_for_products(
    x: Tensor, weight: Tensor, epsilon: float, *, kind: NormKind, dtype: torch.dtype
) -> Tensor:
    """A norm in the dtype in which products read it. Shapes: x [..., D], weight [D] -> [..., D]."""
    found = _in_triton(x, weight, epsilon, kind, dtype)
    return _norm_of(kind)(x, weight, epsilon).to(dtype) if found is None else found


def add_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + update and its rms_norm. Shapes: [..., D] each."""
    return _add(x, update, weight, epsilon, "rounded")


def add_wide_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + update and its wide_rms_norm. Shapes: [..., D] each."""
    return _add(x, update, weight, epsilon, "wide")


def add_offset_rms_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return x + update and its offset_rms_norm. Shapes: [..., D] each."""
    return _add(x, update, weight, epsilon, "offset")


def add_norm_for_products(
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    epsilon: float,
    *,
    kind: NormKind,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return x + update and its norm_for_products. Shapes: [..., D] each."""
    total, normed = _add(x, update, weight, epsilon, kind, dtype)
    return total, normed.to(dtype)


def _add(
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    epsilon: float,
    kind: NormKind,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum and its norm; in Triton the norm has the dtype that is asked for, if one is."""
    if uses_triton(x, update, weight):
        from cutaway.kernels.norm import triton

        number = kind_number(kind)
        return triton.add_norm(x, update, weight, epsilon, kind=number, dtype=dtype)
    is_wide = x.dtype == weight.dtype == torch.promote_types(x.dtype, update.dtype)
    if is_wide and learns_in_triton(x, update, weight):
        from cutaway.kernels.norm import triton_learned

        number, dtype = kind_number(kind), dtype or x.dtype
        return triton_learned.add_norm(x, update, weight, epsilon, kind=number, dtype=dtype)
    return (total := x + update), _norm_of(kind)(total, weight, epsilon)


def _in_triton(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    kind: NormKind,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    """A norm by Triton, with a gradient or without; None where the plain form is to be taken."""
    if uses_triton(x) and (weight is None or uses_triton(x, weight)):
        from cutaway.kernels.norm import triton

        return triton.norm(x, weight, epsilon, kind=kind_number(kind), dtype=dtype)
    # Of two dtypes the plain form gives the wider one, or x's.
    if weight is not None and x.dtype == weight.dtype and learns_in_triton(x, weight):
        from cutaway.kernels.norm import triton_learned

        number, dtype = kind_number(kind), dtype or x.dtype
        return triton_learned.norm(x, weight, epsilon, kind=number, dtype=dtype)
    return None


def _norm_of(kind: NormKind) -> Callable[[Tensor, Tensor, float], Tensor]:
    if kind == "rounded":
        return rms_norm
    return wide_rms_norm if kind == "wide" else offset_rms_norm
