"""Cosines and sines of positions' angles in Triton: one kernel in the place of eight."""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.triton_launches import await_last, early, start_next


def cosines(
    positions: Tensor, inverse: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See plain.cosines; in float64 up to the last step too."""
    num_tokens, half = len(positions), inverse.shape[1]
    cos, sin = (
        torch.empty(num_tokens, half, dtype=dtype, device=positions.device) for _ in range(2)
    )
    if num_tokens:
        _cosines[(num_tokens,)](
            *(positions.contiguous(), inverse.contiguous(), cos, sin),
            EACH=len(inverse) > 1,
            FACTOR=factor,
            HALF=half,
            BLOCK=triton.next_power_of_2(half),
            **early(positions),
            num_warps=2,
        )
    return cos, sin


@triton.jit
def _cosines(
    position_ptr,
    inverse_ptr,
    cos_ptr,
    sin_ptr,
    EACH: tl.constexpr,
    FACTOR: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One token. EACH: whether it has frequencies of its own."""
    start_next(EARLY)
    await_last(EARLY)
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < HALF
    row = token * HALF if EACH else 0
    inverse = tl.load(inverse_ptr + row + pair, mask=inside, other=0.0)
    turned = tl.load(position_ptr + token).to(tl.float64) * inverse
    factor = tl.full([BLOCK], FACTOR, tl.float64)
    cos = (tl.cos(turned) * factor).to(cos_ptr.dtype.element_ty)
    sin = (tl.sin(turned) * factor).to(sin_ptr.dtype.element_ty)
    tl.store(cos_ptr + token * HALF + pair, cos, mask=inside)
    tl.store(sin_ptr + token * HALF + pair, sin, mask=inside)
