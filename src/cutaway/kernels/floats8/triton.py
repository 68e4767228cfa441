"""Floats of 8 bits in Triton: rows rounded to them, each with its scale, and few tokens' products.

A weight is read in pairs and widened by its bits: what it says of the card's own conversion in
triton_pairs holds here too.
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

from cutaway.kernels.floats8.triton_pairs import E4M3_AS_BFLOAT, E4M3_AS_HALF, even_bits, odd_bits
from cutaway.kernels.linear.triton import SomeTile, join_shares, room_for_shares
from cutaway.kernels.triton_launches import await_last, early, start_next

_ENOUGH_ROWS = 132 * 64  # a block of 64 for each multiprocessor of an H100 or H200


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
        **early(values),
        num_warps=8 if block >= 4096 else 4,
    )
    return numbers, scale


def multiply_few(
    x: Tensor, values: Tensor, row_scale: Tensor, *, tile: SomeTile | None = None
) -> Tensor:
    """The product of 2 to 32 tokens in short floats with a weight in e4m3; x is not rounded.

    Tokens are summed alike whatever their number, up to 16 and beyond.

    Shapes: x [..., K], values [N, K], row_scale [N] float32 -> [..., N].
    """
    num_rows, width = values.shape
    flat = x.reshape(-1, width).contiguous()
    out = torch.empty(len(flat), num_rows, dtype=x.dtype, device=x.device)
    tile = tile or _tile_of_few(num_rows, width, len(flat))
    partial, arrived = room_for_shares(out, tile.shares)
    _multiply_few[(triton.cdiv(num_rows, tile.rows), tile.shares)](
        *(flat, values.view(torch.int16), row_scale, out, partial, arrived, len(flat), num_rows),
        WIDTH=width,
        SPLITS=tile.shares,
        TOKENS=16 if len(flat) <= 16 else 32,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        KIND=E4M3_AS_BFLOAT if x.dtype == torch.bfloat16 else E4M3_AS_HALF,
        ASM=x.is_cuda,
        **early(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out.view(*x.shape[:-1], num_rows)


def _tile_of_few(num_rows: int, width: int, num_tokens: int) -> SomeTile:
    """As an H200 likes it."""
    has_many, is_few = num_rows >= _ENOUGH_ROWS, num_tokens <= 16
    if has_many or width < 4 * 256:
        return SomeTile(64, 128, 1, 4, 5) if is_few else SomeTile(128, 128, 1, 4, 4)
    if num_rows > 4096:
        return SomeTile(64, 256, 4, 4, 3) if is_few else SomeTile(64, 128, 4, 4, 5)
    if not is_few:
        return SomeTile(64, 256, 4, 4, 3)
    return SomeTile(128, 256, 4, 8, 3) if width > 8192 else SomeTile(64, 256, 4, 8, 4)


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
def _scaled(
    values_ptr,
    numbers_ptr,
    scale_ptr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(values_ptr + row * WIDTH + column, mask=inside, other=0.0)
    numbers, scale = eighths(x.to(tl.float32)[None, :], 448.0)
    place = numbers_ptr + row * WIDTH + column[None, :]
    tl.store(place, numbers.to(numbers_ptr.dtype.element_ty), mask=inside[None, :])
    tl.store(scale_ptr + row + tl.arange(0, 1), scale)


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_few(
    x_ptr,
    pairs_ptr,
    scale_ptr,
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
    KIND: tl.constexpr,
    ASM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some rows of the weight, as pairs, times all tokens, over one share of the columns."""
    start_next(EARLY)
    HALF: tl.constexpr = COLUMNS // 2
    SHARE: tl.constexpr = ((WIDTH + SPLITS * COLUMNS - 1) // (SPLITS * COLUMNS)) * COLUMNS
    # An e4m3's bits are 2^-120 of it as bfloat16: so that sums stay in the middle of float32's
    # range, the tokens take up 2^64 of that. As float16 they are 2^-8 of it.
    LIFT: tl.constexpr = 18446744073709551616.0 if KIND == 0 else 1.0
    BACK: tl.constexpr = 72057594037927936.0 if KIND == 0 else 256.0
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    is_row, is_token = row < num_rows, token < num_tokens
    await_last(EARLY)
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    pairs_ptr += row.to(tl.int64)[:, None] * (WIDTH // 2)
    x_ptr += token[:, None] * WIDTH
    for first in range(0, SHARE, COLUMNS):
        begin = split * SHARE + first
        pair = begin // 2 + tl.arange(0, HALF)
        column = begin + tl.arange(0, COLUMNS)
        pairs = tl.load(
            pairs_ptr + pair[None, :],
            mask=is_row[:, None] & (pair < WIDTH // 2)[None, :],
            other=0,
            eviction_policy="evict_first",
        )
        present = is_token[:, None] & (column < WIDTH)[None, :]
        x = tl.load(x_ptr + column[None, :], mask=present, other=0.0)
        even, odd = tl.split(tl.reshape(x, [TOKENS, HALF, 2]))
        matrix = even_bits(pairs, KIND, ASM).to(dtype, bitcast=True)
        total = tl.dot((even * LIFT).to(dtype), tl.trans(matrix), acc=total)
        matrix = odd_bits(pairs, KIND, ASM).to(dtype, bitcast=True)
        total = tl.dot((odd * LIFT).to(dtype), tl.trans(matrix), acc=total)
    total *= (tl.load(scale_ptr + row, mask=is_row, other=0.0) * BACK)[None, :]
    place = token[:, None] * num_rows + row[None, :]
    inside = is_token[:, None] & is_row[None, :]
    size = num_tokens * num_rows
    join_shares(total, out_ptr, partial_ptr, arrived_ptr, block, split, place, inside, size, SPLITS)
