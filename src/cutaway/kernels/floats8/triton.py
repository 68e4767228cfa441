"""Rows rounded to floats of 8 bits in Triton, each with its scale."""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def scale_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """See store.plain.scale_rows, to e4m3. Shapes: [T, C] -> [T, C] e4m3, [T] float32."""
    num_rows, width = values.shape
    numbers = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=values.device)
    scale = torch.empty(num_rows, dtype=torch.float32, device=values.device)
    block = triton.next_power_of_2(width)
    _scaled[(num_rows,)](
        *(values.contiguous(), numbers, scale),
        WIDTH=width,
        BLOCK=block,
        num_warps=8 if block >= 4096 else 4,
    )
    return numbers, scale


@triton.jit
def eighths(x, LIMIT: tl.constexpr):
    """Rows as numbers up to LIMIT, and the scale of each; [R, C], zero outside -> [R, C], [R]."""
    largest = tl.max(tl.abs(x), 1)  # which passes over NaN
    largest = tl.where(tl.max((x != x).to(tl.int32), 1) > 0, float("nan"), largest)
    is_small = largest < 1e-30
    is_bad = (largest != largest) | (largest == float("inf"))
    inverse = tl.where(is_small | is_bad, 0.0, LIMIT / tl.where(is_small, 1.0, largest))
    numbers = tl.where(is_bad[:, None], 0.0, x * inverse[:, None])
    return numbers, tl.where(is_small, 0.0, largest / LIMIT)


@triton.jit
def _scaled(values_ptr, numbers_ptr, scale_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(values_ptr + row * WIDTH + column, mask=inside, other=0.0)
    numbers, scale = eighths(x.to(tl.float32)[None, :], 448.0)
    place = numbers_ptr + row * WIDTH + column[None, :]
    tl.store(place, numbers.to(numbers_ptr.dtype.element_ty), mask=inside[None, :])
    tl.store(scale_ptr + row + tl.arange(0, 1), scale)
