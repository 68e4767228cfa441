"""Activations and gates in training: one native pass forward and one back, where there is one.

Equal to the plain forms to rounding. They keep what they read alone; what a gate is joined of need
not be taken apart and put together again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cutaway.kernels import native
from cutaway.kernels.gate import (
    gelu,
    gelu_gate,
    gelu_tanh,
    gelu_tanh_gate,
    silu,
    silu_gate,
)

_Kernel = Callable[..., Tensor]

_KINDS: Mapping[Callable[..., Tensor], tuple[_Kernel, native.Activation]] = {
    silu: (native.curve, native.Activation.SILU),
    gelu: (native.curve, native.Activation.GELU),
    gelu_tanh: (native.curve, native.Activation.GELU_TANH),
    silu_gate: (native.gate_sides, native.Activation.SILU),
    gelu_gate: (native.gate_sides, native.Activation.GELU),
    gelu_tanh_gate: (native.gate_sides, native.Activation.GELU_TANH),
}


def trainable_activation(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x). Shapes: [T, F] -> [T, F]."""
    found = _learned(function, x)
    return function(x) if found is None else found


def trainable_gate(gate: Callable[[Tensor, Tensor], Tensor], sides: Tensor) -> Tensor:
    """gate of the first and the second half of each row. Shapes: [T, 2 F] -> [T, F]."""
    found = _learned(gate, sides)
    return gate(*sides.chunk(2, dim=-1)) if found is None else found


def _learned(function: Callable[..., Tensor], x: Tensor) -> Tensor | None:
    if not native.takes(x) or not x.numel() or (kernel := _KINDS.get(function)) is None:
        return None
    return cast(Tensor, _LearnedGate.apply(x.contiguous(), kernel))


class _LearnedGate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: tuple[_Kernel, native.Activation]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kernel = kernel
        compute, kind = kernel
        return compute(kind, x)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None]:
        (x,), (compute, kind) = ctx.saved_tensors, ctx.kernel
        return compute(kind, x, grads[0].contiguous()), None
