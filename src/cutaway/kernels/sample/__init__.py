"""Sampling by temperature and min_p on a GPU, with the row's numbers: a few passes over logits.

Its plain twin is the sampler itself, sampling/sampler.py, whose stages it says in one place.
"""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import uses_triton

__all__ = ["sample", "takes"]

# What a row of the result holds.
COLUMNS = ("token", "left", "logit", "peak", "total", "low", "high")


def takes(logits: Tensor) -> bool:
    """Whether there is a form for these logits [R, V]."""
    return uses_triton(logits) and logits.stride(1) == 1


def sample(logits: Tensor, choices: Tensor) -> Tensor:
    """The token of each row and the numbers that sampling/sampler.py reads of it.

    Same bits as the stages in torch: whole numbers are added, in any order.

    choices: per row temperature, least weight that stays, and the draw's random number; -1 there
        takes the largest logit.

    Shapes: logits [R, V], choices [R, 3] float64 -> [R, 7] float64, see COLUMNS.
    """
    from cutaway.kernels.sample import triton

    return triton.sample(logits, choices)
