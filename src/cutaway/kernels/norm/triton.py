"""Norms by root mean square in Triton, alone or of a sum: one row per program."""

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

ROUNDED, WIDE, OFFSET = 0, 1, 2  # when the quotient is cast, and what it is multiplied by


def norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    *,
    kind: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """One of the norms of plain.py. Shapes: x [..., D], weight [D] -> [..., D].

    dtype: of what is given, where it is not x's.
    """
    x = x.contiguous()
    out = torch.empty_like(x, dtype=dtype)
    _launch(x, None, weight, epsilon, kind, None, out)
    return out


def add_norm(
    x: Tensor,
    update: Tensor,
    weight: Tensor | None,
    epsilon: float,
    *,
    kind: int,
    total: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum, and the norm of what the sum is in x's dtype. Shapes: [..., D] each.

    total: where the sum is put, instead of in a tensor of its own.
    dtype: of the norm, where it is not x's.
    """
    x, update = x.contiguous(), update.contiguous()
    total = torch.empty_like(x) if total is None else total
    out = torch.empty_like(x, dtype=dtype)
    _launch(x, update, weight, epsilon, kind, total, out)
    return total, out


def _launch(
    x: Tensor,
    update: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    kind: int,
    total: Tensor | None,
    out: Tensor,
) -> None:
    width = x.shape[-1]
    num_rows = x.numel() // width
    if not num_rows:
        return
    block, warps = shape_of(width)
    _norm[(num_rows,)](
        *(x, x if update is None else update, x if weight is None else weight),
        *(out if total is None else total, out, epsilon),
        WIDTH=width,
        ADDS=update is not None,
        HAS_WEIGHT=weight is not None,
        KIND=kind,
        BLOCK=block,
        **early(x),
        num_warps=warps,
    )


def shape_of(width: int) -> tuple[int, int]:
    """Columns of a program and its warps. Whoever takes a norm otherwise sums it otherwise."""
    block = triton.next_power_of_2(width)
    return block, min(8, max(1, block // 256))


@triton.jit
def add_update(x, update):
    """The sum, in x's dtype."""
    return (x.to(tl.float32) + update.to(tl.float32)).to(x.dtype)


@triton.jit
def scale_row(
    x, weight, epsilon, WIDTH: tl.constexpr, HAS_WEIGHT: tl.constexpr, KIND: tl.constexpr
):
    """A row's norm. Shapes: x, weight [BLOCK], with zeros behind WIDTH -> [BLOCK]."""
    wide = x.to(tl.float32)
    quotient = wide * (1.0 / tl.sqrt_rn(tl.sum(wide * wide, 0) / WIDTH + epsilon))
    if HAS_WEIGHT:
        weight = weight.to(tl.float32)
        if KIND == 0:
            quotient = quotient.to(x.dtype).to(tl.float32) * weight
        elif KIND == 1:
            quotient = quotient * weight
        else:
            quotient = quotient * (1.0 + weight)
    return quotient.to(x.dtype)


@triton.jit
def _norm(
    x_ptr,
    update_ptr,
    weight_ptr,
    total_ptr,
    out_ptr,
    epsilon,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    first = tl.program_id(0).to(tl.int64) * WIDTH
    place = tl.arange(0, BLOCK)
    inside = place < WIDTH
    x = tl.load(x_ptr + first + place, mask=inside, other=0.0)
    if ADDS:
        update = tl.load(update_ptr + first + place, mask=inside, other=0.0)
        x = add_update(x, update)
        tl.store(total_ptr + first + place, x, mask=inside)
    weight = x
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + place, mask=inside, other=0.0)
    normed = scale_row(x, weight, epsilon, WIDTH, HAS_WEIGHT, KIND)
    tl.store(out_ptr + first + place, normed, mask=inside)
