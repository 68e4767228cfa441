"""Products in Triton whose rows are summed in one order, whatever their number.

A row of the weight is cut into shares that follow from the weight's shape alone. Within a share the
matrix units add sixteen columns after sixteen to one sum; shares are added in their order. Which
tokens stand beside each other, and in what tiles, is then no part of a result. One token is
multiplied like many: a sum over the lanes of a program would have another order.
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
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from cutaway.kernels.linear import triton_parts
from cutaway.kernels.linear.triton import SomeTile, multiply_shares
from cutaway.kernels.triton_launches import await_last, early, start_next

_WHOLE = 128  # columns: a share is a multiple
_MULTIPROCESSORS = 132  # of an H100 or H200
_ENOUGH_ROWS = _MULTIPROCESSORS * 64  # a block of 64 for each
_MANY_COLUMNS = 8192
_FEW_TOKENS = 32  # that are one tile's columns; the weight's rows are its rows then
_BESIDE = 256  # tokens up to which each share is a program of its own
_FEW_PROGRAMS = 88  # of blocks this large, which leave a third of such a card idle
# Numbers of a weight from which a copy of the tokens costs less than what a block that is not full
# does: at 160 tokens 28,672 x 4,096 take 127 us, and 90 with 96 rows of zeros behind them.
_LARGE = 1 << 25
_GROUP = 8  # blocks of tokens that read the same rows of the weight after each other


class Tile(NamedTuple):
    """What a program takes at once: tokens, rows of the weight, columns; its warps and stages."""

    tokens: int
    rows: int
    columns: int
    warps: int
    stages: int


def num_shares(num_rows: int, width: int) -> int:
    """Into how many shares each row is cut: so many that a small weight keeps a card busy."""
    if num_rows >= _ENOUGH_ROWS or width < 4 * _WHOLE:
        return 1
    return 4 if width >= _MANY_COLUMNS or num_rows <= 2048 else 2


def tile_of(num_tokens: int, shares: int, num_rows: int = _ENOUGH_ROWS) -> Tile:
    """A program's tile, measured on an H200. It decides speed, and no bit."""
    if num_tokens <= _FEW_TOKENS:
        return Tile(16 if num_tokens <= 16 else 32, 64, 128, 4, 5)
    if num_tokens <= 64:
        return Tile(64, 128, 64, 4, 5)
    if num_tokens <= 128:
        return Tile(128, 128, 64, 8, 4)
    if num_tokens <= _BESIDE:
        is_small = _is_small(num_rows, shares)
        return Tile(64, 256, 64, 4, 4) if is_small else Tile(256, 128, 64, 8, 4)
    # Two sums at once, of a share and of those before it, fill the registers of half a tile.
    return Tile(128, 256, 64, 8, 4) if shares == 1 else Tile(128, 128, 64, 8, 4)


def _is_small(num_rows: int, shares: int) -> bool:
    """Whether blocks of 128 rows leave much of a card idle."""
    return triton.cdiv(num_rows, 128) * shares < _FEW_PROGRAMS


def linear(
    x: Tensor, weight: Tensor, *, whole_rows: int | None = None, tile: Tile | None = None
) -> Tensor:
    """See plain.linear, without a bias; both are short floats of one type.

    whole_rows: of the matrix of which a rank has these rows; its shares are those of the whole.
    tile: another than tile_of's, for benchmarks and tests.

    Shapes: x [..., K], weight [N, K] -> [..., N].
    """
    num_rows, width = weight.shape
    flat = x.reshape(-1, width).contiguous()
    num_tokens = len(flat)
    shares = num_shares(whole_rows or num_rows, width)
    # The copy engine reads rows that begin at multiples of 16 bytes.
    most = num_tokens if width * x.element_size() % 16 == 0 else min(num_tokens, _FEW_TOKENS)
    if tile is None and triton_parts.LEAST <= most <= triton_parts.MOST:
        out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
        _multiply_parts(flat, weight, out, shares)
        return out.view(*x.shape[:-1], num_rows)
    tile = tile or tile_of(most, shares, num_rows)
    padding = tile.tokens - num_tokens
    if 0 < padding < tile.tokens // 2 and num_tokens > 128 and weight.numel() >= _LARGE:
        flat = functional.pad(flat, (0, 0, 0, padding))
    out = torch.empty(len(flat), num_rows, dtype=x.dtype, device=x.device)
    if num_tokens and tile.tokens <= _FEW_TOKENS:
        for first in range(0, num_tokens, tile.tokens):
            part = slice(first, first + tile.tokens)
            _multiply_few(flat[part], weight, out[part], shares, tile)
    elif num_tokens:
        _multiply_many(flat, weight, out, shares, tile)
    return out[:num_tokens].view(*x.shape[:-1], num_rows)


def _multiply_few(x: Tensor, weight: Tensor, out: Tensor, shares: int, tile: Tile) -> None:
    some = SomeTile(tile.rows, tile.columns, shares, tile.warps, tile.stages)
    multiply_shares(x, weight, out, some, tokens=tile.tokens)


def _multiply_parts(x: Tensor, weight: Tensor, out: Tensor, shares: int) -> None:
    partial = _room(out, shares) if shares > 1 else None
    share = _columns_of(weight, shares)
    # Of up to 160 tokens a part is so narrow that half of the rows pay until all is busy with 128:
    # 6,144 x 4,096 took 24.3 us on an H200 in place of 26.6; with 192 tokens 35.3 and 28.0.
    is_idle = triton.cdiv(len(weight), 128) * shares < _MULTIPROCESSORS and len(x) <= 160
    rows = 64 if is_idle or _is_small(len(weight), shares) else 128
    triton_parts.multiply(x, weight, out, partial, share=share, shares=shares, rows=rows)
    if partial is not None:
        _add(partial, out)


def _room(out: Tensor, shares: int) -> Tensor:
    return torch.empty(shares, *out.shape, dtype=torch.float32, device=out.device)


def _columns_of(weight: Tensor, shares: int) -> int:
    """Of a share."""
    return triton.cdiv(weight.shape[1], shares * _WHOLE) * _WHOLE


def _add(partial: Tensor, out: Tensor) -> None:
    _add_shares[(triton.cdiv(out.numel(), 1024),)](
        *(partial, out, out.numel()),
        SHARES=len(partial),
        BLOCK=1024,
        **early(out),
        num_warps=4,
    )


def _multiply_many(x: Tensor, weight: Tensor, out: Tensor, shares: int, tile: Tile) -> None:
    num_tokens, num_rows = len(x), len(weight)
    is_apart = shares > 1 and num_tokens <= _BESIDE
    partial = _room(out, shares) if is_apart else out
    blocks = triton.cdiv(num_tokens, tile.tokens), triton.cdiv(num_rows, tile.rows)
    _multiply_tiles[(blocks[0] * blocks[1], shares if is_apart else 1)](
        TensorDescriptor.from_tensor(x, [tile.tokens, tile.columns]),
        TensorDescriptor.from_tensor(weight, [tile.rows, tile.columns]),
        *(out, partial, num_tokens, num_rows),
        SHARE=_columns_of(weight, shares),
        SHARES=shares,
        IS_APART=is_apart,
        TOKENS=tile.tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        GROUP=_GROUP,
        **early(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if is_apart:
        _add(partial, out)


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_tiles(
    x,
    weight,
    out_ptr,
    partial_ptr,
    num_tokens,
    num_rows,
    SHARE: tl.constexpr,
    SHARES: tl.constexpr,
    IS_APART: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some tokens times some rows: one share of the columns, or all after each other."""
    start_next(EARLY)
    await_last(EARLY)
    # Programs that run together read few rows of the weight and few tokens.
    token_blocks = tl.cdiv(num_tokens, TOKENS)
    per_group = GROUP * tl.cdiv(num_rows, ROWS)
    group = tl.program_id(0) // per_group
    size = tl.minimum(token_blocks - group * GROUP, GROUP)
    first_token = (group * GROUP + tl.program_id(0) % per_group % size) * TOKENS
    first_row = tl.program_id(0) % per_group // size * ROWS
    token = first_token + tl.arange(0, TOKENS)
    row = first_row + tl.arange(0, ROWS)
    place = token.to(tl.int64)[:, None] * num_rows + row[None, :]
    inside = (token < num_tokens)[:, None] & (row < num_rows)[None, :]
    if IS_APART:
        share = tl.program_id(1)
        total = tl.zeros([TOKENS, ROWS], tl.float32)
        for first in range(0, SHARE, COLUMNS):
            column = share * SHARE + first
            left = x.load([first_token, column])
            right = weight.load([first_row, column])
            total = tl.dot(left, right.T, total)
        partial_ptr += share.to(tl.int64) * num_tokens * num_rows
        tl.store(partial_ptr + place, total, mask=inside)
    else:
        total = tl.zeros([TOKENS, ROWS], tl.float32)
        for first in range(0, SHARE, COLUMNS):
            left = x.load([first_token, first])
            right = weight.load([first_row, first])
            total = tl.dot(left, right.T, total)
        for share in range(1, SHARES):
            own = tl.zeros([TOKENS, ROWS], tl.float32)
            for first in range(0, SHARE, COLUMNS):
                left = x.load([first_token, share * SHARE + first])
                right = weight.load([first_row, share * SHARE + first])
                own = tl.dot(left, right.T, own)
            total += own
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_shares(
    partial_ptr, out_ptr, size, SHARES: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """The shares of some results, in their order."""
    start_next(EARLY)
    await_last(EARLY)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.load(partial_ptr + place, mask=inside, other=0.0)
    for share in tl.static_range(1, SHARES):
        total += tl.load(partial_ptr + share * size.to(tl.int64) + place, mask=inside, other=0.0)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)
