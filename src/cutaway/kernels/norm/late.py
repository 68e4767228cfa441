"""A norm of a sum that nobody has taken yet: the product that reads it may do it on the way.

A kernel that waits for what the last one wrote costs a step of few tokens about two microseconds,
and every program of a product can norm a single token by itself. In training the product and the
norm before it are one operation that keeps the sum alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cutaway.kernels.dispatch import learns_in_triton, uses_triton
from cutaway.kernels.norm import plain

__all__ = [
    "LateLearnedNorm",
    "LateNorm",
    "NormKind",
    "kind_number",
    "learned_later",
    "norm_later",
]

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


@dataclass
class LateNorm:
    """The norm of hidden + update, of one token, by whoever reads it.

    total: room for the sum, which is there once the norm has been taken, and not before.
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


@dataclass
class LateLearnedNorm(LateNorm):
    """The same in training, of any number of tokens.

    total: the sum once the norm has been taken; before that, anything.
    dtype: of the products that read it.
    """

    dtype: torch.dtype

    def take(self) -> Tensor:
        """Make the sum and return its norm. Shapes: [..., D] each."""
        from cutaway.kernels.norm import triton_learned

        given = (self.hidden, self.update, self.weight, self.epsilon)
        self.total, normed = triton_learned.add_norm(*given, kind=self.number, dtype=self.dtype)
        return normed


def learned_later(
    hidden: Tensor,
    update: Tensor,
    weight: Tensor,
    epsilon: float,
    *,
    kind: NormKind,
    dtype: torch.dtype,
) -> LateLearnedNorm | None:
    """A sum's norm in training, for the product that reads it; None where that is no operation.

    Shapes: hidden, update [..., D], weight [D].
    """
    is_wide = hidden.dtype == weight.dtype == torch.promote_types(hidden.dtype, update.dtype)
    if not (is_wide and learns_in_triton(hidden, update, weight)):
        return None
    return LateLearnedNorm(hidden, update, hidden, weight, epsilon, kind, dtype)


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
