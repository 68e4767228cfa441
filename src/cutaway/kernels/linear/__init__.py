"""Matrix product with a stored weight."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.linear import plain

__all__ = ["linear"]

_MOST_TOKENS = 16  # that are multiplied together; from there on cuBLAS is as fast


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.linear. On a GPU Triton takes few tokens, and cuBLAS the rest."""
    num_tokens = x.numel() // x.shape[-1]
    most = _MOST_TOKENS if x.dtype in (torch.bfloat16, torch.float16) else 1
    is_plain = bias is None and x.dtype == weight.dtype and weight.is_contiguous()
    if is_plain and 0 < num_tokens <= most and uses_triton(x, weight):
        from cutaway.kernels.linear import triton

        return triton.linear(x, weight)
    return plain.linear(x, weight, bias)
