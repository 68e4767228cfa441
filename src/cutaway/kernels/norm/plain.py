"""Normalization of rows in plain PyTorch: by root mean square, or by mean and deviation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from cutaway.kernels.elementwise import row_sum


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide each row by its root mean square, then multiply by weight.

    The mean of squares is taken in float32 or wider, and the quotient is cast to x's dtype
    before the weight, as Llama does.

    Shapes: x [..., D], weight [D] -> [..., D].
    Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """
    return _over_root_mean_square(x, epsilon).to(x.dtype) * weight


def wide_rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Divide each row by its root mean square, multiply by weight if there is one, then cast.

    Shapes: x [..., D], weight [D] -> [..., D].
    Source: Hugging Face Gemma4RMSNorm; in float32 the same as rms_norm.
    """
    quotient = _over_root_mean_square(x, epsilon)
    if weight is not None:
        quotient = quotient * weight.to(quotient.dtype)
    return quotient.to(x.dtype)


def offset_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide each row by its root mean square, multiply by 1 + weight, then cast.

    The factor is made in float32 or wider: 1 + weight has bits that bfloat16 would drop.

    Shapes: x [..., D], weight [D] -> [..., D].
    Source: Hugging Face GemmaRMSNorm.
    """
    quotient = _over_root_mean_square(x, epsilon)
    return (quotient * (1.0 + weight.to(quotient.dtype))).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    """Subtract each row's mean, divide by its deviation, multiply by weight and add bias if given.

    Shapes: x [..., D], weight and bias [D] -> [..., D].
    Source: Ba et al. 2016, arXiv 1607.06450.
    """
    return functional.layer_norm(x, x.shape[-1:], weight, bias, epsilon)


def _over_root_mean_square(x: Tensor, epsilon: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean_square = row_sum(wide.square()) / x.shape[-1]
    return wide * torch.rsqrt(mean_square + epsilon)
