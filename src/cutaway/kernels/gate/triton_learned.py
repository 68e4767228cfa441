"""What products of an activated gate with a value pull back, in Triton: one pass over both sides.

The product itself comes out again on the way, for the gradient of the matrix behind it: so what is
kept between the passes are the two sides alone.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.gate.triton import apply_gate, bend

_ROWS = 4  # of a program


def gradients(sides: Tensor, pull: Tensor, *, kind: int) -> tuple[Tensor, Tensor]:
    """Of the sides, and the gate's product as triton.gate has it.

    pull: the gradient of the product.
    Shapes: sides [T, 2 F], gate and value side by side, pull [T, F] -> [T, 2 F], [T, F].
    """
    sides, pull = sides.contiguous(), pull.contiguous()
    num_rows, width = pull.shape
    of_sides, product = torch.empty_like(sides), torch.empty_like(pull)
    if num_rows:
        block = _block_of(width)
        _pull_gate[(triton.cdiv(num_rows, _ROWS), triton.cdiv(width, block))](
            *(sides, pull, of_sides, product, num_rows, width),
            KIND=kind,
            ROWS=_ROWS,
            BLOCK=block,
            num_warps=4,
        )
    return of_sides, product


def _block_of(width: int) -> int:
    """Columns of a program: few of them behind the last one."""
    return next((block for block in (1024, 512, 256) if width % block == 0), 512)


@triton.jit
def _pull_gate(
    sides_ptr,
    pull_ptr,
    of_sides_ptr,
    product_ptr,
    num_rows,
    width,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (place < width)
    at = row.to(tl.int64) * width + place
    own = row.to(tl.int64) * (2 * width) + place
    gate = tl.load(sides_ptr + own, mask=inside, other=0.0)
    up = tl.load(sides_ptr + own + width, mask=inside, other=0.0)
    pull = tl.load(pull_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(product_ptr + at, apply_gate(gate, up, KIND), mask=inside)
    wide = gate.to(tl.float32)
    open_share = 1.0 / (1.0 + tl.exp(-bend(wide, KIND)))
    if KIND == 0:
        steepness = 1.0
    else:
        steepness = 1.5957691216057308 * (1.0 + 0.134145 * wide * wide)
    slope = open_share * (1.0 + wide * (1.0 - open_share) * steepness)
    tl.store(of_sides_ptr + own, pull * up.to(tl.float32) * slope, mask=inside)
    tl.store(of_sides_ptr + own + width, pull * (wide * open_share), mask=inside)
