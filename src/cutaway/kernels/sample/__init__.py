"""Sampling by temperature and the three cuts on a GPU, with the row's numbers, in few passes.

Its plain twin is the sampler itself, sampling/sampler.py, whose stages it says in one place.
"""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import uses_triton

__all__ = ["SETTINGS", "sample", "takes"]

SETTINGS = 6  # of a row: see sample

# What a row of the result holds.
COLUMNS = ("token", "left", "logit", "peak", "total", "low", "high")


def takes(logits: Tensor) -> bool:
    """Whether there is a form for these logits [R, V]."""
    return uses_triton(logits) and logits.stride(1) == 1


def sample(logits: Tensor, choices: Tensor, *, has_top_k: bool, has_top_p: bool) -> Tensor:
    """The token of each row and the numbers that sampling/sampler.py reads of it.

    Same bits as the stages in torch: whole numbers are added, in any order.

    choices: per row temperature, least weight that stays, the draw's random number, where -1 takes
        the largest logit, top_k, where 0 keeps all, what top_p drops of 2^32, where -1 is
        without it, and whether logit, peak and total are those after the temperature (1) or the
        row's own (0).
    has_top_k, has_top_p: whether any row has them.

    Shapes: logits [R, V], choices [R, 6] float64 -> [R, 7] float64, see COLUMNS.
    """
    from cutaway.kernels.sample import triton

    return triton.sample(logits, choices, has_top_k=has_top_k, has_top_p=has_top_p)
