"""Norms: by root mean square in the forms that models have, and by mean and deviation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from cutaway.kernels.heads import HeadNorm
from cutaway.kernels.norm import (
    add_norm_for_products,
    add_offset_rms_norm,
    add_rms_norm,
    add_wide_rms_norm,
    layer_norm,
    norm_for_products,
    offset_rms_norm,
    rms_norm,
    wide_rms_norm,
)
from cutaway.kernels.norm.late import LateNorm, NormKind, learned_later, norm_later

# Of rows, and of a sum that comes too.
_NORMS: Final[Mapping[NormKind, tuple[Callable[..., Tensor], Callable[..., Any]]]] = {
    "rounded": (rms_norm, add_rms_norm),
    "wide": (wide_rms_norm, add_wide_rms_norm),
    "offset": (offset_rms_norm, add_offset_rms_norm),
}


class RMSNorm(nn.Module):
    """Scale each row to root mean square 1, then by weight.

    product_dtype: what all that read it multiply in, where that is not the stream's, in training.

    Shapes: hidden [..., D] -> [..., D].
    """

    kind: NormKind = "rounded"
    product_dtype: torch.dtype | None = None

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize each row. Shapes: hidden [..., D] -> [..., D]."""
        if self.product_dtype is not None:
            dtype = self.product_dtype
            return norm_for_products(hidden, self.weight, self.epsilon, kind=self.kind, dtype=dtype)
        return _NORMS[self.kind][0](hidden, self.weight, self.epsilon)

    def add(self, hidden: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of both, and its norm."""
        given = (hidden, update, self.weight, self.epsilon)
        if self.product_dtype is not None:
            return add_norm_for_products(*given, kind=self.kind, dtype=self.product_dtype)
        return _NORMS[self.kind][1](*given)

    def add_later(self, hidden: Tensor, update: Tensor) -> LateNorm | None:
        """Both, for whoever reads the norm to take it; None where that does not pay."""
        given = (hidden, update, self.weight, self.epsilon)
        if self.product_dtype is not None:
            return learned_later(*given, kind=self.kind, dtype=self.product_dtype)
        return norm_later(*given, kind=self.kind)

    @property
    def of_heads(self) -> HeadNorm:
        """The norm as a part of what is done to heads at once."""
        return HeadNorm(self.weight, self.epsilon, self.kind)


class WideRMSNorm(RMSNorm):
    """The same, cast after the weight and not before it, as Gemma 4 does."""

    kind = "wide"


class UnitRMSNorm(nn.Module):
    """Scale each row to root mean square 1; nothing is learned.

    Shapes: hidden [..., D] -> [..., D].
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize each row. Shapes: hidden [..., D] -> [..., D]."""
        return wide_rms_norm(hidden, None, self.epsilon)


class OffsetRMSNorm(RMSNorm):
    """Scale each row to root mean square 1, then by 1 + weight, as Gemma 1 to 3 do.

    The offset stays apart from the weight, because bfloat16 keeps a small weight exactly and
    its sum with 1 not.

    Shapes: hidden [..., D] -> [..., D].
    """

    kind = "offset"

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__(width, epsilon)
        nn.init.zeros_(self.weight)


class LayerNorm(nn.Module):
    """Shift each row to mean 0, scale it to deviation 1, then by weight, and add a bias or none.

    Shapes: hidden [..., D] -> [..., D].
    """

    def __init__(self, width: int, epsilon: float, *, has_bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias else None
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize each row. Shapes: hidden [..., D] -> [..., D]."""
        return layer_norm(hidden, self.weight, self.bias, self.epsilon)


class UnitLayerNorm(nn.Module):
    """Shift each row to mean 0 and scale it to deviation 1; nothing is learned.

    Shapes: hidden [..., D] -> [..., D].
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize each row. Shapes: hidden [..., D] -> [..., D]."""
        return layer_norm(hidden, None, None, self.epsilon)


class HeadLayerNorm(nn.Module):
    """Shift each head to mean 0, scale it to deviation 1, then by weights of its own.

    Shapes: heads [T, H, C] -> [T, H, C].
    Source: Hugging Face CohereLayerNorm.
    """

    def __init__(self, num_heads: int, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_heads, size))
        self.epsilon = epsilon
        self.kept: range | None = None  # heads of this rank; None: all

    def keep(self, heads: range) -> None:
        """Keep the weights of some heads: those that are normed here. Before weights are set."""
        self.kept = heads
        self.weight = nn.Parameter(self.weight[heads.start : heads.stop].detach().clone())

    def forward(self, heads: Tensor) -> Tensor:
        """Normalize each head. Shapes: heads [T, H, C] -> [T, H, C]."""
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        return (layer_norm(wide, None, None, self.epsilon) * self.weight).to(heads.dtype)
