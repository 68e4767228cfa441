"""Norms by root mean square whose gradient is one native pass; forward they are the plain ones."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cutaway.kernels import native
from cutaway.kernels.norm import plain


def is_learned(x: Tensor, weight: Tensor) -> bool:
    """Whether a gradient is wanted and the native pass gives it: of float32 on a CPU."""
    wants = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return wants and x.numel() > 0 and native.takes(x, weight)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See plain.rms_norm; to the bit."""
    return cast(Tensor, _LearnedNorm.apply(x, weight, epsilon))


class _LearnedNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return plain.rms_norm(x, weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        rows, pulls = (each.reshape(-1, each.shape[-1]).contiguous() for each in (x, grads[0]))
        of_x, of_weight = native.rms_gradients(rows, weight, ctx.epsilon, pulls)
        return of_x.view(x.shape), of_weight, None
