"""A norm of a sum that nobody has taken yet: the product that reads it may do it on the way.

A kernel that waits for what the last one wrote costs a step of few tokens about two microseconds,
and every program of a product can norm a single token by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.norm import plain

__all__ = ["LateNorm", "NormKind", "kind_number", "norm_later"]

# Whether norms of one token are left to the products behind them; their bits are the same.
LEAVES_NORMS = True

NormKind = Literal["rounded", "wide", "offset"]
_PLAIN = {
    "rounded": plain.rms_norm,
    "wide": plain.wide_rms_norm,
    "offset": plain.offset_rms_norm,
}


def kind_number(kind: NormKind) -> int:
    """A kind of norm as norm/triton.py counts them."""
    return tuple(_PLAIN).index(kind)


@dataclass(frozen=True)
class LateNorm:
    """The norm of hidden + update, of one token, by whoever reads it.

    total: room for the sum, which is there once the norm has been taken.
    kind: rms_norm's, wide_rms_norm's or offset_rms_norm's.

    Shapes: hidden, update, total [..., D], weight [D].
    """

    hidden: Tensor
    update: Tensor
    total: Tensor
    weight: Tensor
    epsilon: float
    kind: NormKind

    @property
    def number(self) -> int:
        """Its kind, as norm/triton.py counts them."""
        return kind_number(self.kind)

    def take(self) -> Tensor:
        """Put the sum in its room and return its norm. Shapes: [..., D]."""
        if uses_triton(self.hidden, self.update, self.weight):
            from cutaway.kernels.norm import triton

            given = (self.hidden, self.update, self.weight, self.epsilon)
            return triton.add_norm(*given, kind=self.number, total=self.total)[1]
        torch.add(self.hidden, self.update, out=self.total)
        return _PLAIN[self.kind](self.total, self.weight, self.epsilon)


def norm_later(
    hidden: Tensor, update: Tensor, weight: Tensor, epsilon: float, *, kind: NormKind
) -> LateNorm | None:
    """The norm of one token's sum, not taken yet; None where it is better taken at once.

    Shapes: hidden, update [..., D], weight [D].
    """
    is_short = hidden.dtype in (torch.bfloat16, torch.float16)
    is_alike = hidden.dtype == update.dtype == weight.dtype and hidden.shape == update.shape
    is_one = hidden.numel() == hidden.shape[-1]
    if not (LEAVES_NORMS and is_one and is_short and is_alike):
        return None
    if not uses_triton(hidden, update, weight):
        return None
    total = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    return LateNorm(hidden, update, total, weight, epsilon, kind)
