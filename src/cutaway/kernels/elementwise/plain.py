"""Functions of single entries and sums of rows whose bits do not hang on where they lie.

On a CPU torch computes sigmoid, silu, gelu, softplus and pow in a vector's body by other
instructions than in its tail, so that an entry's last bits hang on its place in the tensor. Here
they are made of operations that have one form in both: exp, tanh, erf, log1p and plain arithmetic.
tests/torch_bits.py tries all of them under each instruction set that torch has.

Computed in float32 or wider, and rounded once to the dtype that came in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from cutaway.kernels.recording import operation

_WIDEST_SUM = 2**15 - 1  # entries of a row; a longer one torch may share out among threads
_PART = 2**12


@operation()
def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x). Shapes: [...]."""
    return _apply(_SIGMOID, x)


@operation()
def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x). Shapes: [...]."""
    return _apply(_SILU, x)


@operation()
def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x). Shapes: [...]."""
    return _apply(_SOFTPLUS, x)


@operation()
def gelu(x: Tensor) -> Tensor:
    """Return x / 2 * (1 + erf(x / sqrt(2))). Shapes: [...]."""
    return _apply(_GELU, x)


@operation()
def gelu_tanh(x: Tensor) -> Tensor:
    """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))). Shapes: [...].

    Source: Hendrycks and Gimpel 2016, arXiv 1606.08415; GPT-2 and Gemma use this form.
    """
    return _apply(_GELU_TANH, x)


def power(base: Tensor | float, exponent: Tensor | float) -> Tensor:
    """Return base ** exponent for a base above zero, in float64. Shapes broadcast."""
    logarithm = base.double().log() if isinstance(base, Tensor) else math.log(base)
    return torch.as_tensor(exponent * logarithm, dtype=torch.float64).exp()


@operation()
def row_sum(x: Tensor) -> Tensor:
    """The sum of each row, in an order that hangs on its length alone.

    Shapes: x [..., D] -> [..., 1].
    """
    # Of rows that lie whole torch sums each alone; of columns it sums many at once otherwise.
    x = x.contiguous()
    if x.shape[-1] > _WIDEST_SUM:
        x = torch.cat([row_sum(part) for part in torch.split(x, _PART, dim=-1)], dim=-1)
    return x.sum(dim=-1, keepdim=True)


@dataclass(frozen=True)
class _Curve:
    """A function of single entries.

    own:     in operations that have one form, in place where it can; nothing is kept for gradients.
    pull:    what a gradient becomes behind it, in torch's own operations of one pass, and
        differentiable where it is differentiated again. Here bits may hang on an entry's place.
    torchs:  torch's own, for devices whose threads take one entry each.
    """

    own: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor, Tensor], Tensor]
    torchs: Callable[[Tensor], Tensor]


def _apply(curve: _Curve, x: Tensor) -> Tensor:
    if not x.is_cpu:
        return curve.torchs(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if wide.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _Learned.apply(wide, curve)).to(x.dtype)
    return curve.own(wide).to(x.dtype)


class _Learned(Function):
    """A curve with a gradient of its own: what computing leaves on the way is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, curve: _Curve) -> Tensor:
        ctx.save_for_backward(x)
        ctx.curve = curve
        return curve.own(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.curve.pull(grads[0], x), None


def _one_and_exp(x: Tensor) -> Tensor:
    """Return 1 + e^-x."""
    return torch.neg(x).exp_().add_(1.0)


def _silu_pull(grad: Tensor, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, x)
    share = sigmoid(x)  # torch's own cannot be differentiated again
    return grad * (share * (1.0 + x * (1.0 - share)))


def _softplus(x: Tensor) -> Tensor:
    return torch.abs(x).neg_().exp_().log1p_().add_(x.clamp(min=0.0))


def _gelu(x: Tensor) -> Tensor:
    return (x * _ROOT_HALF).erf_().add_(1.0).mul_(x).mul_(0.5)


def _gelu_tanh(x: Tensor) -> Tensor:
    inner = (x * x).mul_(_ROOT_TWO_OVER_PI * _CUBIC).add_(_ROOT_TWO_OVER_PI).mul_(x)
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)


_ROOT_HALF = math.sqrt(0.5)
_ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715

_aten = torch.ops.aten

_SIGMOID = _Curve(
    lambda x: _one_and_exp(x).reciprocal_(),
    lambda grad, x: _aten.sigmoid_backward(grad, sigmoid(x)),
    torch.sigmoid,
)
_SILU = _Curve(lambda x: x / _one_and_exp(x), _silu_pull, functional.silu)
_SOFTPLUS = _Curve(_softplus, lambda grad, x: grad * sigmoid(x), functional.softplus)
_GELU = _Curve(_gelu, _aten.gelu_backward, functional.gelu)
_GELU_TANH = _Curve(
    _gelu_tanh,
    lambda grad, x: _aten.gelu_backward(grad, x, approximate="tanh"),
    lambda x: functional.gelu(x, approximate="tanh"),
)
