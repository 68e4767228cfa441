"""Norms by root mean square that can be learned, in Triton: one pass forward and one back.

The pass back reads each row once, adds what comes by the sum's other way, and gives the gradient in
each dtype that is read behind it. Weights' gradients are added up by programs that take rows in
turn, and then over these: the order is the same in every run.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cutaway.kernels.norm import triton as forward_kernels

_PROGRAMS = 8  # of the pass back for each multiprocessor


def norm(x: Tensor, weight: Tensor, epsilon: float, *, kind: int, dtype: torch.dtype) -> Tensor:
    """See triton.norm. Shapes: x [..., D], weight [D] -> [..., D] in dtype."""
    return cast(Tensor, _Norm.apply(x, weight, epsilon, kind, dtype))


def add_norm(
    x: Tensor, update: Tensor, weight: Tensor, epsilon: float, *, kind: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See triton.add_norm: the sum in x's dtype and its norm in dtype. Shapes: [..., D] each."""
    found = _AddNorm.apply(x, update, weight, epsilon, kind, dtype)
    return cast("tuple[Tensor, Tensor]", found)


class _Norm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, epsilon: float, kind: int, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.told = (epsilon, kind)
        return forward_kernels.norm(x, weight, epsilon, kind=kind, dtype=dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        epsilon, kind = ctx.told
        of_x, _, of_weight, _ = gradients(x, weight, epsilon, kind, grads[0])
        return of_x, of_weight, None, None, None


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        update: Tensor,
        weight: Tensor,
        epsilon: float,
        kind: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        total, normed = forward_kernels.add_norm(x, update, weight, epsilon, kind=kind, dtype=dtype)
        ctx.save_for_backward(total, weight)
        ctx.told, ctx.update_dtype = (epsilon, kind), update.dtype
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        (of_total, of_normed), (epsilon, kind) = grads, ctx.told
        of_x, of_update, of_weight, _ = gradients(
            total, weight, epsilon, kind, of_normed, of_total=of_total, narrow=ctx.update_dtype
        )
        return of_x, of_update, of_weight, None, None, None


def gradients(
    x: Tensor,
    weight: Tensor,
    epsilon: float,
    kind: int,
    of_normed: Tensor,
    *,
    of_total: Tensor | None = None,
    narrow: torch.dtype | None = None,
    makes_norm: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Of x, the same in another dtype, and of the weight; and the norm itself, if it is wanted.

    of_total: what comes to x beside the norm.
    makes_norm: whether the norm comes out again, in the dtype of its gradient and its own bits.
    Shapes: x, of_normed, of_total [..., D], weight [D] -> [..., D], [..., D], [D], [..., D].
    """
    width = x.shape[-1]
    x, of_normed = x.contiguous(), of_normed.contiguous()
    of_total = None if of_total is None else of_total.contiguous()
    num_rows = x.numel() // width
    of_x = torch.empty_like(x)
    is_cast = narrow is not None and narrow != x.dtype
    of_update = torch.empty_like(x, dtype=narrow) if is_cast else of_x
    normed = torch.empty_like(of_normed) if makes_norm else None
    if not num_rows:
        return of_x, of_update, torch.zeros_like(weight), normed
    programs = min(num_rows, _PROGRAMS * _multiprocessors(x.device))
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    block, warps = forward_kernels.shape_of(width)
    _pull_norm[(programs,)](
        *(x, weight, of_normed, of_normed if of_total is None else of_total),
        *(of_x, of_update, of_x if normed is None else normed, sums),
        *(epsilon, num_rows, triton.cdiv(num_rows, programs)),
        WIDTH=width,
        KIND=kind,
        ADDS=of_total is not None,
        CASTS=is_cast,
        NORMS=makes_norm,
        BLOCK=block,
        num_warps=warps,
    )
    return of_x, of_update, sums.sum(0).to(weight.dtype), normed


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _places(row, num_rows, place, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Where a row lies, and which of its places there are."""
    inside = (place < WIDTH) & (tl.zeros([BLOCK], tl.int32) + row < num_rows)
    return inside, row.to(tl.int64) * WIDTH + place


@triton.jit
def _pull_norm(
    x_ptr,
    weight_ptr,
    of_normed_ptr,
    of_total_ptr,
    of_x_ptr,
    of_update_ptr,
    normed_ptr,
    sums_ptr,
    epsilon,
    num_rows,
    rows_each,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    ADDS: tl.constexpr,
    CASTS: tl.constexpr,
    NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every so many-th row. With u = x / rms: (w g - u mean(w g u)) / rms, and of w g u."""
    place = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + place, mask=place < WIDTH, other=0.0).to(tl.float32)
    if KIND == 2:
        weight += 1.0
    sums = tl.zeros([BLOCK], tl.float32)
    row = tl.program_id(0)
    inside, at = _places(row, num_rows, place, WIDTH, BLOCK)
    next_x = tl.load(x_ptr + at, mask=inside, other=0.0)
    next_pull = tl.load(of_normed_ptr + at, mask=inside, other=0.0)
    if ADDS:
        next_total = tl.load(of_total_ptr + at, mask=inside, other=0.0)
    for _ in range(rows_each):
        x, pull = next_x.to(tl.float32), next_pull.to(tl.float32)
        if ADDS:
            total = next_total.to(tl.float32)
        own_inside, own_at = inside, at
        row += tl.num_programs(0)
        inside, at = _places(row, num_rows, place, WIDTH, BLOCK)
        # The next row is on its way while this one is summed.
        next_x = tl.load(x_ptr + at, mask=inside, other=0.0)
        next_pull = tl.load(of_normed_ptr + at, mask=inside, other=0.0)
        if ADDS:
            next_total = tl.load(of_total_ptr + at, mask=inside, other=0.0)
        scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / WIDTH + epsilon)
        unit = x * scale
        sums += pull * unit
        pulled = pull * weight
        of_x = (pulled - unit * (tl.sum(pulled * unit, 0) / WIDTH)) * scale
        if ADDS:
            of_x += total
        tl.store(of_x_ptr + own_at, of_x, mask=own_inside)
        if CASTS:
            tl.store(of_update_ptr + own_at, of_x, mask=own_inside)
        if NORMS:
            kept = x_ptr.dtype.element_ty  # rounded where the pass forward rounds
            normed = (unit.to(kept).to(tl.float32) if KIND == 0 else unit) * weight
            tl.store(normed_ptr + own_at, normed.to(kept), mask=own_inside)
    tl.store(sums_ptr + tl.program_id(0) * WIDTH + place, sums, mask=place < WIDTH)
