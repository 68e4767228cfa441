"""Products of short floats with integers of 4 bits in Triton, two to four columns an instruction.

Unpacking one number after the other takes longer than reading the matrix. A single token is rounded
instead, finely: each run of 32 columns to integers of 16 bits with a scale of its own, whose upper
and lower bytes are multiplied with the nibbles as they lie, exactly. For several tokens nibbles
become short floats by their bits, two at a time, for the matrix units.
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

from cutaway.kernels.gate.triton import apply_gate
from cutaway.kernels.heads.plain import HeadPlaces
from cutaway.kernels.heads.triton_places import PLACES, paired_row, place_arguments, place_pairs
from cutaway.kernels.linear.triton import room_for
from cutaway.kernels.norm.late import LateNorm
from cutaway.kernels.norm.triton import add_update, scale_row, shape_of
from cutaway.kernels.triton_launches import await_last, early, fetch, plan_fetch, start_next

# Whether a product of one token has the cache fill with the matrix behind it while it waits: a step
# of the 8B shape took 1.806 ms on an H200 in place of 1.829.
FETCHES = True

RUN = 32  # columns that share a scale of the token
_WIDE_RUNS = 512  # that sixteen warps hold at once: 4,096 x 14,336 took 12.1 us in place of 12.7
_MANY_ROWS = 16_384
_MULTIPROCESSORS = 132  # of an H100 or H200


def multiply_row(
    x: Tensor,
    quants: Tensor,
    quant_scale: Tensor,
    zero: Tensor,
    *,
    following: Tensor | None = None,
) -> Tensor:
    """See plain.multiply, for one token in short floats. Groups are of 32, 64 or 128 columns.

    following: what is read behind it, if that is known.
    """
    num_rows, num_groups = quant_scale.shape
    width = quants.shape[1] * 2
    out = torch.empty(*x.shape[:-1], num_rows, dtype=x.dtype, device=x.device)
    rows, runs, warps, _ = _tile(num_rows, width)
    if runs * RUN >= width:
        given = (x.contiguous(), None, quants, quant_scale, zero, out)
        _launch_rows(*given, after=None, following=following)
        return out
    _multiply_row[(triton.cdiv(num_rows, rows),)](
        *(x.contiguous(), quants.view(torch.int32), quant_scale, zero, out, num_rows),
        WIDTH=width,
        GROUP=width // num_groups,
        ONE_ZERO=zero.numel() == 1,
        ASM=x.is_cuda,
        ROWS=rows,
        RUNS=runs,
        **early(x),
        num_warps=warps,
    )
    return out


def takes_norm(num_rows: int, width: int) -> bool:
    """Whether multiply_normed has a norm of that width, summed as the norm's own kernel does."""
    _, runs, warps, _ = _tile(num_rows, width)
    return shape_of(width) == (runs * RUN, warps)


def multiply_normed(
    x: LateNorm,
    quants: Tensor,
    quant_scale: Tensor,
    zero: Tensor,
    *,
    after: int | HeadPlaces | None,
) -> Tensor:
    """multiply_row of a norm that is taken on the way, and of what follows, in their very bits.

    after: a gate of gate/triton.py, over the first half of the rows and the second; or where heads
    are put, of which the queries are returned [1, H, C].
    Every program takes the norm, and the first one keeps the sum.
    """
    out = room_for(x, len(quant_scale), after)
    _launch_rows(x.hidden.contiguous(), x, quants, quant_scale, zero, out, after=after)
    return out


def _launch_rows(
    x: Tensor,
    norm: LateNorm | None,
    quants: Tensor,
    quant_scale: Tensor,
    zero: Tensor,
    out: Tensor,
    *,
    after: int | HeadPlaces | None,
    following: Tensor | None = None,
) -> None:
    """One token whose runs are held at once. norm: of x and an update, which then is the token."""
    num_rows, num_groups = quant_scale.shape
    width = quants.shape[1] * 2
    rows, runs, warps, programs = _tile(num_rows, width)
    num_outs, outs = (num_rows, rows) if after is None else (num_rows // 2, rows // 2)
    given = (x, x, x) if norm is None else (norm.update.contiguous(), norm.weight, norm.total)
    places = after if isinstance(after, HeadPlaces) else None
    tensors, named = place_arguments(places, num_rows, x)
    _multiply_rows[(min(triton.cdiv(num_outs, outs), programs),)](
        *(x, *given, quants.view(torch.int32), quant_scale, zero, out, *tensors, num_outs),
        0.0 if norm is None else norm.epsilon,
        **plan_fetch(following if FETCHES else None, x),
        WIDTH=width,
        GROUP=width // num_groups,
        ONE_ZERO=zero.numel() == 1,
        ASM=x.is_cuda,
        NORM=-1 if norm is None else norm.number,
        GATE=-1 if after is None else after if isinstance(after, int) else PLACES,
        **named,
        ROWS=rows,
        RUNS=runs,
        **early(x),
        num_warps=warps,
    )


def multiply_tokens(x: Tensor, quants: Tensor, quant_scale: Tensor, zero: Tensor) -> Tensor:
    """The same for 2 to 64 tokens."""
    num_rows, num_groups = quant_scale.shape
    width = quants.shape[1] * 2
    out = torch.empty(*x.shape[:-1], num_rows, dtype=x.dtype, device=x.device)
    num_tokens = x.numel() // width
    rows, words, warps, stages = _tokens_tile(num_rows, num_tokens)
    _multiply_tokens[(triton.cdiv(num_rows, rows),)](
        *(x.contiguous(), quants.view(torch.int32), quant_scale, zero, out, num_tokens, num_rows),
        WIDTH=width,
        GROUP=width // num_groups,
        ONE_ZERO=zero.numel() == 1,
        ASM=x.is_cuda,
        TOKENS=max(16, triton.next_power_of_2(num_tokens)),
        ROWS=rows,
        WORDS=words,
        **early(x),
        num_warps=warps,
        num_stages=stages,
    )
    return out


def _tokens_tile(num_rows: int, num_tokens: int) -> tuple[int, int, int, int]:
    """Rows, words of a row at once, warps and stages: as an H200 likes it."""
    if num_rows >= _MANY_ROWS:
        return (128, 16, 8, 3) if num_tokens <= 16 else (64, 32, 4, 2)
    return (32 if num_tokens <= 16 else 64), 32, 4, 3


def _tile(num_rows: int, width: int) -> tuple[int, int, int, int]:
    """Rows, runs of columns at once, and warps of a single token's product, likewise.

    The last: programs, where each has all runs and takes block after block of the rows.
    """
    all_runs = max(2, triton.next_power_of_2(width // RUN))
    if all_runs == _WIDE_RUNS and num_rows < _MANY_ROWS:
        return 8, all_runs, 16, _MULTIPROCESSORS
    runs = min(128, all_runs)
    if runs * RUN < width:
        return 8, runs, 4, 0
    return (
        (16, runs, 8, 2 * _MULTIPROCESSORS)
        if num_rows >= _MANY_ROWS
        else (8, runs, 8, 3 * _MULTIPROCESSORS)
    )


@triton.jit
def _dot(words, even_high, even_low, odd_high, odd_low, ASM: tl.constexpr):
    """Of the eight nibbles of each word and eight integers of 16 bits, by their bytes."""
    if ASM:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 e, o, h, l;
            and.b32 e, $1, 0x0f0f0f0f;
            shr.u32 o, $1, 4;
            and.b32 o, o, 0x0f0f0f0f;
            dp4a.u32.s32 h, e, $2, 0;
            dp4a.u32.s32 h, o, $4, h;
            dp4a.u32.u32 l, e, $3, 0;
            dp4a.u32.u32 l, o, $5, l;
            mad.lo.s32 $0, h, 256, l;
            }""",
            "=r,r,r,r,r,r",
            [words, even_high, even_low, odd_high, odd_low],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    even, odd = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
    total = even * 0
    for each in tl.static_range(4):
        low = 8 * each
        high = 24 - low
        total += ((even >> low) & 15) * (
            ((even_high << high) >> 24) * 256 + ((even_low >> low) & 255)
        )
        total += ((odd >> low) & 15) * (((odd_high << high) >> 24) * 256 + ((odd_low >> low) & 255))
    return total


@triton.jit
def _as_integer(x, inverse):
    """Its lower 16 bits are the integer nearest to x * inverse, by the place of a float's bits."""
    return (x * inverse + 12582912.0).to(tl.int32, bitcast=True)


@triton.jit
def _lower(a, b, c, d):
    return (a & 255) | ((b & 255) << 8) | ((c & 255) << 16) | (d << 24)


@triton.jit
def _upper(a, b, c, d):
    return ((a >> 8) & 255) | (b & 0xFF00) | ((c & 0xFF00) << 8) | ((d & 0xFF00) << 16)


@triton.jit
def _runs(
    words_ptr,
    scale_ptr,
    zero_ptr,
    row,
    is_row,
    first,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Some runs of some rows: their words [R, J, 4], scales [R, J] and zeros."""
    EACH: tl.constexpr = WIDTH // GROUP
    at = row.to(tl.int64)[:, None]
    run = first + tl.arange(0, RUNS)
    word = first * 4 + tl.arange(0, RUNS * 4)
    words = tl.load(
        words_ptr + at * (WIDTH // 8) + word[None, :],
        mask=is_row[:, None] & (word < WIDTH // 8)[None, :],
        other=0,
        eviction_policy="evict_first",
    )
    group = run
    if GROUP > 32:
        group = run // (GROUP // 32)
    inside = is_row[:, None] & (run < WIDTH // 32)[None, :]
    scale = tl.load(scale_ptr + at * EACH + group[None, :], mask=inside, other=0.0)
    if ONE_ZERO:
        zero = tl.load(zero_ptr).to(tl.int32)
    else:
        zero = tl.load(zero_ptr + at * EACH + group[None, :], mask=inside, other=0).to(tl.int32)
    return tl.reshape(words, [ROWS, RUNS, 4]), scale, zero


@triton.jit
def _rounded(x, RUNS: tl.constexpr):
    """Some runs of the token as integers of 16 bits for _dot, and the scale and sum of each.

    x [32 J] -> [J, 4] four times, [J] float32, [J] integers.
    """
    x = x.to(tl.float32)
    even, odd = tl.split(tl.reshape(x, [RUNS, 4, 4, 2]))
    ae, cg = tl.split(tl.reshape(even, [RUNS, 4, 2, 2]))
    bf, dh = tl.split(tl.reshape(odd, [RUNS, 4, 2, 2]))
    a, e = tl.split(ae)
    b, f = tl.split(bf)
    c, g = tl.split(cg)
    d, h = tl.split(dh)
    largest = tl.maximum(
        tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), tl.abs(d))),
        tl.maximum(tl.maximum(tl.abs(e), tl.abs(f)), tl.maximum(tl.abs(g), tl.abs(h))),
    )
    largest = tl.max(largest, 1)
    is_small = largest < 1e-30
    inverse = tl.where(is_small, 0.0, 32767.0 / tl.where(is_small, 1.0, largest))[:, None]
    # NaN and infinity in a token reach every product.
    bad = tl.sum(((a + b) + (c + d) + (e + f) + (g + h)) * 0.0, 1)
    x_scale = tl.where(is_small, 0.0, largest * (1.0 / 32767.0)) + bad
    a, b, c = _as_integer(a, inverse), _as_integer(b, inverse), _as_integer(c, inverse)
    d, e, f = _as_integer(d, inverse), _as_integer(e, inverse), _as_integer(f, inverse)
    g, h = _as_integer(g, inverse), _as_integer(h, inverse)
    # Each carries the bits of 12582912.0; eight of them are 0x5A000000 above 2^32.
    x_sum = tl.sum((a + b + c + d + e + f + g + h) - 0x5A000000, 1)
    upper_even, lower_even = _upper(a, c, e, g), _lower(a, c, e, g)
    upper_odd, lower_odd = _upper(b, d, f, h), _lower(b, d, f, h)
    return upper_even, lower_even, upper_odd, lower_odd, x_scale, x_sum


@triton.jit
def _sums(words, scale, zero, even, even_low, odd, odd_low, x_scale, x_sum, ASM: tl.constexpr):
    """What each run of some rows adds to their products. words [R, J, 4] -> [R, J]."""
    part = _dot(
        words,
        even[None, :, :],
        even_low[None, :, :],
        odd[None, :, :],
        odd_low[None, :, :],
        ASM,
    )
    part = tl.sum(part, 2) - zero * x_sum[None, :]
    return scale.to(tl.float32) * (part.to(tl.float32) * x_scale[None, :])


@triton.jit
def _multiply_row(
    x_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    num_rows,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    ASM: tl.constexpr,
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    ALL: tl.constexpr = WIDTH // 32
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    total = tl.zeros([ROWS, RUNS], tl.float32)
    # Nothing of a step writes these, so they are read while the kernel before this one ends.
    words, scale, zero = _runs(
        words_ptr, scale_ptr, zero_ptr, row, is_row, 0, WIDTH, GROUP, ONE_ZERO, ROWS, RUNS
    )
    await_last(EARLY)
    for first in range(0, ALL, RUNS):
        column = first * 32 + tl.arange(0, RUNS * 32)
        x = tl.load(x_ptr + column, mask=column < WIDTH, other=0.0)
        even, even_low, odd, odd_low, x_scale, x_sum = _rounded(x, RUNS)
        total += _sums(words, scale, zero, even, even_low, odd, odd_low, x_scale, x_sum, ASM)
        if ALL > RUNS:
            words, scale, zero = _runs(
                *(words_ptr, scale_ptr, zero_ptr, row, is_row, first + RUNS),
                *(WIDTH, GROUP, ONE_ZERO, ROWS, RUNS),
            )
    out = tl.sum(total, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row, out, mask=is_row)


@triton.jit
def _multiply_rows(
    x_ptr,
    update_ptr,
    norm_ptr,
    total_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    key_ptr,
    value_ptr,
    slots_ptr,
    num_outs,
    epsilon,
    following_ptr,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    ASM: tl.constexpr,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    RUNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The same where all runs of a token are held at once: rounded once for several blocks.

    With what follows half of a block's rows are beside the others: gate and value, pairs that turn.
    """
    start_next(EARLY)
    OUTS: tl.constexpr = ROWS if GATE < 0 else ROWS // 2
    block, step = tl.program_id(0), tl.num_programs(0)
    side = tl.arange(0, ROWS) // OUTS
    out = block * OUTS + tl.arange(0, ROWS) % OUTS
    row = paired_row(out, side, num_outs, GATE, HALF)
    words, scale, zero = _runs(
        *(words_ptr, scale_ptr, zero_ptr, row, out < num_outs, 0),
        *(WIDTH, GROUP, ONE_ZERO, ROWS, RUNS),
    )
    column = tl.arange(0, RUNS * 32)
    inside = column < WIDTH
    if NORM >= 0:
        norm = tl.load(norm_ptr + column, mask=inside, other=0.0)
    fetch(following_ptr, CHUNK)
    await_last(EARLY)
    x = tl.load(x_ptr + column, mask=inside, other=0.0)
    if NORM >= 0:
        x = add_update(x, tl.load(update_ptr + column, mask=inside, other=0.0))
        if block == 0:
            tl.store(total_ptr + column, x, mask=inside)
        x = scale_row(x, norm, epsilon, WIDTH, True, NORM)
    even, even_low, odd, odd_low, x_scale, x_sum = _rounded(x, RUNS)
    for _ in range(0, tl.cdiv(num_outs, OUTS * step)):
        later = out + OUTS * step
        row = paired_row(later, side, num_outs, GATE, HALF)
        following = _runs(
            *(words_ptr, scale_ptr, zero_ptr, row, later < num_outs, 0),
            *(WIDTH, GROUP, ONE_ZERO, ROWS, RUNS),
        )
        total = _sums(words, scale, zero, even, even_low, odd, odd_low, x_scale, x_sum, ASM)
        product = tl.sum(total, 1).to(out_ptr.dtype.element_ty)
        if GATE < 0:
            tl.store(out_ptr + out, product, mask=out < num_outs)
        else:
            first, second = tl.split(tl.trans(tl.reshape(product, [2, OUTS])))
            place = block * OUTS + tl.arange(0, OUTS)
            exists = place < num_outs
            if GATE == 2:
                place_pairs(
                    *(
                        first,
                        second,
                        place,
                        exists,
                        cos_ptr,
                        sin_ptr,
                        key_ptr,
                        value_ptr,
                        slots_ptr,
                    ),
                    *(out_ptr, NUM_HEADS, NUM_GROUPS, HALF),
                )
            else:
                tl.store(out_ptr + place, apply_gate(first, second, GATE), mask=exists)
            block += step
        out = later
        words, scale, zero = following


@triton.jit
def _short(bits, dtype: tl.constexpr):
    return bits.to(tl.int16).to(dtype, bitcast=True)


@triton.jit
def _spread(runs):
    """A number of each run at each of its four words. [R, J] -> [R, 4 J]."""
    wide = tl.broadcast_to(runs[:, :, None], [runs.shape[0], runs.shape[1], 4])
    return tl.reshape(wide, [runs.shape[0], runs.shape[1] * 4])


@triton.jit
def _pairs(words, scale, zero, dtype: tl.constexpr, ASM: tl.constexpr):
    """scale * (nibble - zero) of columns 0 and 4, 1 and 5, 2 and 6, 3 and 7 of each word.

    A nibble is the last bits of a short float near 128 or 1,024, from which as much is taken off.
    """
    if dtype == tl.bfloat16:
        near: tl.constexpr = 0x4300
    else:
        near: tl.constexpr = 0x6400
    base = _spread((zero | near) * 0x10001)
    factor = scale.to(dtype).to(tl.int16, bitcast=True).to(tl.int32)
    factor = _spread((factor & 0xFFFF) * 0x10001)
    if ASM:
        if dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 s, c;
                mov.b32 c, 0x43004300;
                lop3.b32 $0, $4, 0x000f000f, c, 0xea;
                sub.rn.bf16x2 $0, $0, $6;
                mul.rn.bf16x2 $0, $0, $5;
                shr.u32 s, $4, 4;
                lop3.b32 $1, s, 0x000f000f, c, 0xea;
                sub.rn.bf16x2 $1, $1, $6;
                mul.rn.bf16x2 $1, $1, $5;
                shr.u32 s, $4, 8;
                lop3.b32 $2, s, 0x000f000f, c, 0xea;
                sub.rn.bf16x2 $2, $2, $6;
                mul.rn.bf16x2 $2, $2, $5;
                shr.u32 s, $4, 12;
                lop3.b32 $3, s, 0x000f000f, c, 0xea;
                sub.rn.bf16x2 $3, $3, $6;
                mul.rn.bf16x2 $3, $3, $5;
                }""",
                "=&r,=&r,=&r,=&r,r,r,r",
                [words, factor, base],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 s, c;
            mov.b32 c, 0x64006400;
            lop3.b32 $0, $4, 0x000f000f, c, 0xea;
            sub.rn.f16x2 $0, $0, $6;
            mul.rn.f16x2 $0, $0, $5;
            shr.u32 s, $4, 4;
            lop3.b32 $1, s, 0x000f000f, c, 0xea;
            sub.rn.f16x2 $1, $1, $6;
            mul.rn.f16x2 $1, $1, $5;
            shr.u32 s, $4, 8;
            lop3.b32 $2, s, 0x000f000f, c, 0xea;
            sub.rn.f16x2 $2, $2, $6;
            mul.rn.f16x2 $2, $2, $5;
            shr.u32 s, $4, 12;
            lop3.b32 $3, s, 0x000f000f, c, 0xea;
            sub.rn.f16x2 $3, $3, $6;
            mul.rn.f16x2 $3, $3, $5;
            }""",
            "=&r,=&r,=&r,=&r,r,r,r",
            [words, factor, base],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    return (
        _pair(words, base, factor, near, dtype),
        _pair(words >> 4, base, factor, near, dtype),
        _pair(words >> 8, base, factor, near, dtype),
        _pair(words >> 12, base, factor, near, dtype),
    )


@triton.jit
def _pair(words, base, factor, NEAR: tl.constexpr, dtype: tl.constexpr):
    low = _short((words & 15) | NEAR, dtype) - _short(base, dtype)
    high = _short(((words >> 16) & 15) | NEAR, dtype) - _short(base, dtype)
    low = (low * _short(factor, dtype)).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    high = (high * _short(factor, dtype)).to(tl.int16, bitcast=True).to(tl.int32) << 16
    return low | high


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_tokens(
    x_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    num_tokens,
    num_rows,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    ASM: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some rows times all tokens."""
    start_next(EARLY)
    await_last(EARLY)
    EACH: tl.constexpr = WIDTH // GROUP
    ALL: tl.constexpr = WIDTH // 8
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    is_row, is_token = row < num_rows, token < num_tokens
    at = row.to(tl.int64)[:, None]
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for first in range(0, ALL, WORDS):
        word = first + tl.arange(0, WORDS)
        held = is_row[:, None] & (word < ALL)[None, :]
        words = tl.load(words_ptr + at * ALL + word[None, :], mask=held, other=0)
        run = first // 4 + tl.arange(0, WORDS // 4)
        inside = is_row[:, None] & (run < ALL // 4)[None, :]
        group = run
        if GROUP > 32:
            group = run // (GROUP // 32)
        scale = tl.load(scale_ptr + at * EACH + group[None, :], mask=inside, other=0.0)
        if ONE_ZERO:
            zero = tl.load(zero_ptr).to(tl.int32)
            zero = tl.full([ROWS, WORDS // 4], 0, tl.int32) + zero
        else:
            zero = tl.load(zero_ptr + at * EACH + group[None, :], mask=inside, other=0)
            zero = zero.to(tl.int32)
        ae, bf, cg, dh = _pairs(words, scale, zero, dtype, ASM)
        ae = tl.join(_short(ae, dtype), _short(ae >> 16, dtype))
        bf = tl.join(_short(bf, dtype), _short(bf >> 16, dtype))
        cg = tl.join(_short(cg, dtype), _short(cg >> 16, dtype))
        dh = tl.join(_short(dh, dtype), _short(dh >> 16, dtype))
        even = tl.reshape(tl.join(ae, cg), [ROWS, WORDS, 4])
        odd = tl.reshape(tl.join(bf, dh), [ROWS, WORDS, 4])
        matrix = tl.reshape(tl.join(even, odd), [ROWS, WORDS * 8])
        column = first * 8 + tl.arange(0, WORDS * 8)
        present = is_token[:, None] & (column < WIDTH)[None, :]
        x = tl.load(x_ptr + token[:, None] * WIDTH + column[None, :], mask=present, other=0.0)
        total = tl.dot(matrix, tl.trans(x), acc=total)
    out = out_ptr + token[None, :] * num_rows + row[:, None]
    tl.store(out, total.to(dtype), mask=is_row[:, None] & is_token[None, :])
