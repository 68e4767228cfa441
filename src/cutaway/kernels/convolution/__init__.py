"""A short convolution over a sequence's tokens, whose last inputs are kept from step to step."""

from __future__ import annotations

from torch import Tensor

from cutaway.core.step import Step
from cutaway.kernels.convolution import plain
from cutaway.kernels.recording import operation

__all__ = ["convolve_sequences"]


def _like_first(x: Tensor, *_: object, **__: object) -> Tensor:
    return x.new_empty(x.shape)


@operation(shape_of=_like_first, has_effect=True)
def convolve_sequences(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, step: Step, layer: int
) -> Tensor:
    """See plain.convolve_sequences."""
    return plain.convolve_sequences(x, weight, bias, step=step, layer=layer)
