"""Products of one row, or a few, with a dense weight in Triton: bound by reading the weight.

cuBLAS reads small matrices at half to three quarters of a card's bandwidth when rows are few.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """See plain.linear, for one row and no bias. Shapes: x [..., K], weight [N, K] -> [..., N]."""
    num_rows, width = weight.shape
    out = torch.empty(*x.shape[:-1], num_rows, dtype=x.dtype, device=x.device)
    rows, columns, warps = _tile(width)
    _multiply_row[(triton.cdiv(num_rows, rows),)](
        *(x.contiguous(), weight, out, num_rows),
        WIDTH=width,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=warps,
        num_stages=2,
    )
    return out


def _tile(width: int) -> tuple[int, int, int]:
    """Rows and columns that a program takes at once, and its warps: measured on an H200."""
    if width <= 2048:
        return 2, min(1024, triton.next_power_of_2(width)), 4
    if width <= 4096:
        return 1, 4096, 8
    return 2, 512, 4


@triton.jit
def _multiply_row(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    weight_ptr += row.to(tl.int64)[:, None] * WIDTH
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        x = tl.load(x_ptr + column, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(
            weight_ptr + column[None, :],
            mask=is_row[:, None] & inside[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        total += weight.to(tl.float32) * x[None, :]
    out = tl.sum(total, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row, out, mask=is_row)
