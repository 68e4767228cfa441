"""Products of weights that are floats of 8 bits, on a GPU that multiplies them.

Few tokens are bound by reading the weights, and stay as they are; many are rounded to 8 bits too.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.floats8 import plain

__all__ = ["is_taken", "multiply"]

_FEW_TOKENS = 32

_ALIGNED = 16  # numbers of a row, and rows, that the matrix units ask for multiples of


def is_taken(x: Tensor, values: Tensor, quant_scale: Tensor) -> bool:
    """Whether the device multiplies e4m3: with a scale per row or one for all, in bfloat16."""
    rows, columns = values.shape
    has_row_scales = quant_scale.shape[1] == 1 and len(quant_scale) in (1, rows)
    are_aligned = rows % _ALIGNED == 0 and columns % _ALIGNED == 0
    is_plain = x.dtype == torch.bfloat16 and values.dtype == torch.float8_e4m3fn
    return is_plain and has_row_scales and are_aligned and uses_triton(x) and _multiplies(x.device)


def multiply(x: Tensor, values: Tensor, quant_scale: Tensor) -> Tensor:
    """See plain.multiply. A scale that all rows share has to be spread over them before.

    Shapes: x [..., K], values [N, K], quant_scale [N, 1] or [1, 1] -> [..., N].
    """
    rows, columns = values.shape
    num_tokens = x.numel() // columns
    if not is_taken(x, values, quant_scale):
        return plain.multiply(x, values, quant_scale, few_tokens=_FEW_TOKENS)
    row_scale = quant_scale.float().view(-1).expand(rows).contiguous()
    from cutaway.kernels.floats8 import triton

    if num_tokens == 1:
        from cutaway.kernels.linear.triton import multiply_row

        return multiply_row(x, values, row_scale, is_kept=True)
    if 0 < num_tokens <= _FEW_TOKENS:
        return triton.multiply_few(x, values, row_scale)
    flat = x.reshape(-1, columns)
    numbers, scale = triton.scale_rows(flat)
    # The units' own sums are shorter than float32's: 14,336 columns came out 0.33 % off on an H200
    # in place of 0.17, where rounding to e4m3 costs 3 %; 160 tokens took two thirds of the time.
    out = torch._scaled_mm(  # pyright: ignore[reportPrivateUsage]  # torch has no other name yet
        *(numbers, values.T),
        scale_a=scale[:, None],
        scale_b=row_scale[None],
        out_dtype=x.dtype,
        use_fast_accum=True,
    )
    return out.view(*x.shape[:-1], rows)


@cache
def _multiplies(device: torch.device) -> bool:
    """Cards with products of e4m3 scaled by row: Hopper and later."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
