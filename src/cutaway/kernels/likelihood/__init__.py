"""How likely rows of logits find given entries, and what that pulls back."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import TRITON_DTYPES, has_triton
from cutaway.kernels.likelihood import plain

__all__ = ["of_logits", "scores"]


def scores(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """See plain.scores."""
    if _is_in_triton(logits):
        from cutaway.kernels.likelihood import triton

        return triton.scores(logits, targets, temperature)
    return plain.scores(logits, targets, temperature)


def of_logits(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    of_found: Tensor,
    of_sums: Tensor,
    temperature: float,
    *,
    in_place: bool = False,
) -> Tensor:
    """See plain.of_logits. in_place: the result may lie where the logits lie."""
    given = (logits, targets, sums, of_found, of_sums, temperature)
    if _is_in_triton(logits):
        from cutaway.kernels.likelihood import triton

        return triton.of_logits(*given, in_place=in_place)
    return plain.of_logits(*given)


def _is_in_triton(logits: Tensor) -> bool:
    return logits.is_cuda and logits.dtype in TRITON_DTYPES and has_triton()
