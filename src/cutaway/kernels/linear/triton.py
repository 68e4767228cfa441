"""Products of one row, or a few, with a dense weight in Triton: bound by reading the weight.

cuBLAS reads small matrices at half to three quarters of a card's bandwidth when rows are few.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.gate.triton import apply_gate
from cutaway.kernels.heads.plain import HeadPlaces
from cutaway.kernels.heads.triton_places import PLACES, paired_row, place_arguments, place_pairs
from cutaway.kernels.norm.late import LateNorm
from cutaway.kernels.norm.triton import add_update, scale_row, shape_of
from cutaway.kernels.triton_launches import await_last, counters, early, start_next

_TOKENS = 16  # room for as many
_ENOUGH_PROGRAMS = 132  # one for each multiprocessor of an H100 or H200
_SPLITS = 4


class SomeTile(NamedTuple):
    """How several tokens are multiplied.

    rows, columns: of the weight that a program takes at once.   shares: of the columns.
    """

    rows: int = 64
    columns: int = 128
    shares: int = 1
    warps: int = 4
    stages: int = 5


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """See plain.linear, for up to 16 tokens and no bias.

    Tokens are summed alike whatever their number, from two on. A parameter is read ahead, since
    nothing of a step writes it.

    Shapes: x [..., K], weight [N, K] -> [..., N].
    """
    num_rows, width = weight.shape
    num_tokens = x.numel() // width
    if num_tokens == 1:
        return multiply_row(x, weight, is_kept=isinstance(weight, torch.nn.Parameter))
    out = torch.empty(*x.shape[:-1], num_rows, dtype=x.dtype, device=x.device)
    tile = _tile_of_some(num_rows, width)
    multiply_shares(x.contiguous().view(num_tokens, width), weight, out, tile)
    return out


def multiply_row(
    x: Tensor, weight: Tensor, row_scale: Tensor | None = None, *, is_kept: bool
) -> Tensor:
    """See plain.linear, for one token and no bias; weights may be floats of 8 bits.

    is_kept: whether nothing of the step writes the weight, so that it may be read ahead.

    Shapes: x [..., K], weight [N, K], row_scale [N] float32, of the weight's rows -> [..., N].
    """
    out = torch.empty(*x.shape[:-1], len(weight), dtype=x.dtype, device=x.device)
    _launch_row(x.contiguous(), None, weight, row_scale, out, after=None, is_kept=is_kept)
    return out


def takes_norm(weight: Tensor) -> bool:
    """Whether multiply_normed takes the norm too, summed as the norm's own kernel does."""
    num_rows, width = weight.shape
    return shape_of(width) == _tile(num_rows, width, weight.element_size())[1:]


def takes_pairs(weight: Tensor) -> bool:
    """Whether a program of one token's product has two rows that belong together."""
    num_rows, width = weight.shape
    return num_rows % 2 == 0 and _tile(num_rows, width, weight.element_size())[0] > 1


def multiply_normed(
    x: LateNorm, weight: Tensor, *, after: int | HeadPlaces | None, is_kept: bool
) -> Tensor:
    """multiply_row of a norm, taken on the way where it can be, and what follows, in their bits.

    after: a gate of gate/triton.py, over the first half of the rows and the second; or where heads
    are put, of which the queries are returned [1, H, C].
    Every program takes the norm, and the first one keeps the sum.
    """
    out = room_for(x, len(weight), after)
    token, norm = (x.hidden.contiguous(), x) if takes_norm(weight) else (x.take(), None)
    _launch_row(token, norm, weight, None, out, after=after, is_kept=is_kept)
    return out


def room_for(x: LateNorm, num_rows: int, after: int | HeadPlaces | None) -> Tensor:
    """Of what is made of a product's rows."""
    if isinstance(after, HeadPlaces):
        groups, size = after.key_pages.shape[2:]
        return x.total.new_empty(1, num_rows // size - 2 * groups, size)
    return x.total.new_empty(*x.total.shape[:-1], num_rows if after is None else num_rows // 2)


def _launch_row(
    x: Tensor,
    norm: LateNorm | None,
    weight: Tensor,
    row_scale: Tensor | None,
    out: Tensor,
    *,
    after: int | HeadPlaces | None,
    is_kept: bool,
) -> None:
    """One token. norm: of x and an update, which then is the token."""
    num_rows, width = weight.shape
    rows, columns, warps = _tile(num_rows, width, weight.element_size())
    num_outs, outs = (num_rows, rows) if after is None else (num_rows // 2, rows // 2)
    given = (x, x, x) if norm is None else (norm.update.contiguous(), norm.weight, norm.total)
    places = after if isinstance(after, HeadPlaces) else None
    tensors, named = place_arguments(places, num_rows, x)
    _multiply_row[(triton.cdiv(num_outs, outs),)](
        *(x, *given, weight, weight if row_scale is None else row_scale, out, *tensors, num_outs),
        0.0 if norm is None else norm.epsilon,
        HAS_SCALE=row_scale is not None,
        IS_KEPT=is_kept,
        WIDTH=width,
        NORM=-1 if norm is None else norm.number,
        GATE=-1 if after is None else after if isinstance(after, int) else PLACES,
        **named,
        ROWS=rows,
        COLUMNS=columns,
        **early(x),
        num_warps=warps,
        num_stages=2,
    )


def _tile_of_some(num_rows: int, width: int) -> SomeTile:
    tile = SomeTile()
    blocks = triton.cdiv(num_rows, tile.rows)
    if blocks >= _ENOUGH_PROGRAMS or width < _SPLITS * tile.columns:
        return tile
    # With fewer stages three programs share a multiprocessor, and all of these run at once: 15.5
    # in place of 17.2 us for 6,144 x 4,096.
    is_beyond = 2 * _ENOUGH_PROGRAMS < blocks * _SPLITS <= 3 * _ENOUGH_PROGRAMS
    return tile._replace(shares=_SPLITS, stages=3 if is_beyond else tile.stages)


def multiply_shares(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    tile: SomeTile,
    *,
    tokens: int = _TOKENS,
) -> None:
    """Up to so many tokens times a weight whose rows are cut into shares, added in their order.

    Shapes: x [T, K], weight [N, K] -> out [T, N].
    """
    (num_rows, width), num_tokens, shares = weight.shape, len(x), tile.shares
    blocks = triton.cdiv(num_rows, tile.rows)
    partial, arrived = room_for_shares(out, shares)
    _multiply_tokens[(blocks, shares)](
        *(x, weight, out, partial, arrived, num_tokens, num_rows),
        WIDTH=width,
        SPLITS=shares,
        TOKENS=tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **early(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def room_for_shares(out: Tensor, shares: int) -> tuple[Tensor, Tensor]:
    """Where join_shares keeps what several programs have, and counts how many are done.

    Shapes: out [T, N] -> [shares, T, N], and blocks.
    """
    if shares == 1:
        return out, out
    partial = torch.empty(shares, *out.shape, dtype=torch.float32, device=out.device)
    return partial, counters(out.device)


def _tile(num_rows: int, width: int, num_bytes: int) -> tuple[int, int, int]:
    """Rows and columns that a program takes at once, and its warps: measured on an H200.

    num_bytes: of a number of the weight.
    """
    if width <= 2048:
        rows = 4 if num_rows >= 4096 and num_bytes > 1 else 2
        return rows, min(1024, triton.next_power_of_2(width)), 4
    if num_bytes > 1:
        return (2 if width <= 8192 and num_rows >= 2048 else 1), 2048, 8
    return (1, 4096, 8) if width <= 4096 else (2, 512, 4)


@triton.jit
def _columns(weight_ptr, is_row, first, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of some rows, which nothing reads again."""
    column = first + tl.arange(0, COLUMNS)
    return tl.load(
        weight_ptr + column[None, :],
        mask=is_row[:, None] & (column < WIDTH)[None, :],
        other=0.0,
        eviction_policy="evict_first",
    )


@triton.jit
def _multiply_row(
    x_ptr,
    update_ptr,
    norm_ptr,
    total_ptr,
    weight_ptr,
    scale_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    key_ptr,
    value_ptr,
    slots_ptr,
    num_outs,
    epsilon,
    HAS_SCALE: tl.constexpr,
    IS_KEPT: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """With what follows half of the rows are beside the others; a norm has all columns at once."""
    start_next(EARLY)
    if not IS_KEPT:
        await_last(EARLY)
    OUTS: tl.constexpr = ROWS if GATE < 0 else ROWS // 2
    out = tl.program_id(0) * OUTS + tl.arange(0, ROWS) % OUTS
    is_row = out < num_outs
    row = paired_row(out, tl.arange(0, ROWS) // OUTS, num_outs, GATE, HALF)
    weight_ptr += row.to(tl.int64)[:, None] * WIDTH
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    weight = _columns(weight_ptr, is_row, 0, WIDTH, COLUMNS)
    if NORM >= 0:
        place = tl.arange(0, COLUMNS)
        norm = tl.load(norm_ptr + place, mask=place < WIDTH, other=0.0)
    if IS_KEPT:
        await_last(EARLY)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        x = tl.load(x_ptr + column, mask=inside, other=0.0)
        if NORM >= 0:
            x = add_update(x, tl.load(update_ptr + column, mask=inside, other=0.0))
            if tl.program_id(0) == 0:
                tl.store(total_ptr + column, x, mask=inside)
            x = scale_row(x, norm, epsilon, WIDTH, True, NORM)
        total += weight.to(tl.float32) * x.to(tl.float32)[None, :]
        weight = _columns(weight_ptr, is_row, first + COLUMNS, WIDTH, COLUMNS)
    product = tl.sum(total, 1)
    if HAS_SCALE:
        product *= tl.load(scale_ptr + row, mask=is_row, other=0.0)
    product = product.to(out_ptr.dtype.element_ty)
    if GATE < 0:
        tl.store(out_ptr + out, product, mask=is_row)
    else:
        first, second = tl.split(tl.trans(tl.reshape(product, [2, OUTS])))
        place = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
        inside = place < num_outs
        if GATE == 2:
            place_pairs(
                *(first, second, place, inside, cos_ptr, sin_ptr, key_ptr, value_ptr, slots_ptr),
                *(out_ptr, NUM_HEADS, NUM_GROUPS, HALF),
            )
        else:
            tl.store(out_ptr + place, apply_gate(first, second, GATE), mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_tokens(
    x_ptr,
    weight_ptr,
    out_ptr,
    partial_ptr,
    arrived_ptr,
    num_tokens,
    num_rows,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some rows of the weight times all tokens, over one share of the columns.

    Whichever program of a block is the last to be done adds the shares, in their order.
    """
    start_next(EARLY)
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    SHARE: tl.constexpr = ((WIDTH + SPLITS * COLUMNS - 1) // (SPLITS * COLUMNS)) * COLUMNS
    await_last(EARLY)
    token = tl.arange(0, TOKENS)
    is_row = row < num_rows
    is_token = token < num_tokens
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    weight_ptr += row.to(tl.int64)[:, None] * WIDTH
    x_ptr += token[None, :] * WIDTH
    for first in range(0, SHARE, COLUMNS):
        column = split * SHARE + first + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        weight = tl.load(
            weight_ptr + column[None, :],
            mask=is_row[:, None] & inside[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        x = tl.load(x_ptr + column[:, None], mask=inside[:, None] & is_token[None, :], other=0.0)
        total = tl.dot(weight, x, acc=total, input_precision="ieee")
    place = token[None, :] * num_rows + row[:, None]
    inside = is_row[:, None] & is_token[None, :]
    size = num_tokens * num_rows
    join_shares(total, out_ptr, partial_ptr, arrived_ptr, block, split, place, inside, size, SPLITS)


@triton.jit
def join_shares(
    total,
    out_ptr,
    partial_ptr,
    arrived_ptr,
    block,
    split,
    place,
    inside,
    size,
    SPLITS: tl.constexpr,
):
    """Store what a program has of its block; the last of the block's to be done adds the shares.

    place, inside: of its numbers in the product, which has so many in all.
    """
    if SPLITS == 1:
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_ptr + split * size + place, total, mask=inside)
        tl.debug_barrier()
        before = tl.atomic_add(arrived_ptr + block, 1, sem="acq_rel")
        if before == SPLITS - 1:
            total = tl.zeros_like(total)
            for each in range(SPLITS):
                part = partial_ptr + each * size + place
                total += tl.load(part, mask=inside, other=0.0, volatile=True)
            tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)
            tl.store(arrived_ptr + block, 0)
