"""Products in which both sides are floats of 8 bits, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.kernels.store.plain import scale_rows


def multiply(x: Tensor, values: Tensor, quant_scale: Tensor, *, few_tokens: int = 0) -> Tensor:
    """x times the transposed values * quant_scale.

    Each of more than few_tokens tokens is rounded to 8 bits with a scale of its own before.

    Shapes: x [..., K], values [N, K] e4m3, quant_scale [N, 1] or [1, 1] float32 -> [..., N].
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    given = x.to(wide)
    if x.numel() // x.shape[-1] > few_tokens:
        numbers, scale = scale_rows(x, torch.float8_e4m3fn)
        given = numbers.to(wide) * scale[..., None]
    return (given @ values.to(wide).T * quant_scale.to(wide).view(-1)).to(x.dtype)
