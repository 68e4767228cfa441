"""Products with integers in groups of columns in Triton: what is read are the integers.

One token is multiplied by the vector units, several by the matrix units; for many the matrix is
unpacked once.
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

from cutaway.kernels.integers import triton_nibbles

_LEAST_TOKENS = 16  # that the matrix units take at once


def multiply(
    x: Tensor,
    quants: Tensor,
    quant_scale: Tensor,
    zero: Tensor,
    *,
    has_nibbles: bool,
    following: Tensor | None = None,
) -> Tensor:
    """See plain.multiply, for up to 64 tokens. Groups are of 32, 64 or 128 columns.

    following: what is read behind it, if that is known.
    """
    num_rows, num_groups = quant_scale.shape
    width = quants.shape[1] * (2 if has_nibbles else 1)
    out = torch.empty(*x.shape[:-1], num_rows, dtype=x.dtype, device=x.device)
    num_tokens = x.numel() // width
    given = (x.contiguous(), quants, quant_scale, zero, out)
    named = {
        "WIDTH": width,
        "GROUP": width // num_groups,
        "ONE_ZERO": zero.numel() == 1,
        "NIBBLES": has_nibbles,
    }
    if has_nibbles and x.dtype != torch.float32:
        if num_tokens > 1:
            return triton_nibbles.multiply_tokens(x, quants, quant_scale, zero)
        return triton_nibbles.multiply_row(x, quants, quant_scale, zero, following=following)
    if num_tokens == 1:
        rows = 8 if num_rows <= 8192 else 16  # as an H200 likes it
        columns = min(2048, triton.next_power_of_2(width))
        _multiply_row[(triton.cdiv(num_rows, rows),)](
            *(*given, num_rows), **named, ROWS=rows, COLUMNS=columns, num_warps=4, num_stages=3
        )
        return out
    tokens = max(_LEAST_TOKENS, triton.next_power_of_2(num_tokens))
    rows = 32 if num_rows <= 8192 else 64
    _multiply_tokens[(triton.cdiv(num_rows, rows),)](
        *(*given, num_tokens, num_rows),
        **named,
        TOKENS=tokens,
        ROWS=rows,
        COLUMNS=128,
        num_warps=4,
        num_stages=4,
    )
    return out


def unpack(
    quants: Tensor, quant_scale: Tensor, zero: Tensor, *, has_nibbles: bool, dtype: torch.dtype
) -> Tensor:
    """The matrix itself in a type. Shapes: as plain.multiply has them -> [N, K]."""
    num_rows, num_groups = quant_scale.shape
    width = quants.shape[1] * (2 if has_nibbles else 1)
    out = torch.empty(num_rows, width, dtype=dtype, device=quants.device)
    columns = min(1024, triton.next_power_of_2(width))
    _unpack[(num_rows, triton.cdiv(width, columns))](
        *(quants, quant_scale, zero, out),
        WIDTH=width,
        GROUP=width // num_groups,
        ONE_ZERO=zero.numel() == 1,
        NIBBLES=has_nibbles,
        COLUMNS=columns,
        num_warps=4,
    )
    return out


@triton.jit
def _near_one(nibble):
    """1 + nibble / 16 by its bits: making a float of an integer is four times as slow."""
    return ((nibble.to(tl.int32) << 19) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _multiply_row(
    x_ptr,
    quants_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    num_rows,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    NIBBLES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of x * quants by group; what the zero of 8 bits adds is taken off per group."""
    GROUPS: tl.constexpr = COLUMNS // GROUP
    EACH: tl.constexpr = WIDTH // GROUP
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    at = row.to(tl.int64)[:, None]
    total = tl.zeros([ROWS, GROUPS], tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        group = first // GROUP + tl.arange(0, GROUPS)
        x = tl.load(x_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        inside = is_row[:, None] & (group < EACH)[None, :]
        scale = tl.load(scale_ptr + at * EACH + group[None, :], mask=inside, other=0.0)
        if ONE_ZERO:
            zero = tl.load(zero_ptr).to(tl.float32)
        else:
            zero = tl.load(zero_ptr + at * EACH + group[None, :], mask=inside, other=0)
            zero = zero.to(tl.float32)
        if NIBBLES:
            HALF: tl.constexpr = COLUMNS // 2
            byte = first // 2 + tl.arange(0, HALF)
            held = is_row[:, None] & (byte < WIDTH // 2)[None, :]
            quants = tl.load(
                quants_ptr + at * (WIDTH // 2) + byte[None, :],
                mask=held,
                other=0,
                eviction_policy="evict_first",
            ).to(tl.int32)
            # Their zero is taken off each, exactly: taken off their sum it leaves the rounding of
            # one several times as large.
            offset = tl.broadcast_to(1.0 + zero / 16.0, [ROWS, GROUPS])[:, :, None]
            even, odd = tl.split(tl.reshape(x, [GROUPS, GROUP // 2, 2]))
            low = tl.reshape(_near_one(quants & 15), [ROWS, GROUPS, GROUP // 2]) - offset
            high = tl.reshape(_near_one(quants >> 4), [ROWS, GROUPS, GROUP // 2]) - offset
            part = 16.0 * tl.sum(low * even[None, :, :] + high * odd[None, :, :], 2)
        else:
            held = is_row[:, None] & (column < WIDTH)[None, :]
            quants = tl.load(
                quants_ptr + at * WIDTH + column[None, :],
                mask=held,
                other=0,
                eviction_policy="evict_first",
            )
            part = quants.to(tl.float32) * x[None, :]
            x_sum = tl.sum(tl.reshape(x, [GROUPS, GROUP]), 1)
            part = tl.sum(tl.reshape(part, [ROWS, GROUPS, GROUP]), 2) - zero * x_sum[None, :]
        total += scale.to(tl.float32) * part
    out = tl.sum(total, 1).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row, out, mask=is_row)


@triton.jit
def _nibble(quants, dtype: tl.constexpr):
    """Integers below 16 as floats; for bfloat16 by its bits, as 128 and more, less 128."""
    if dtype == tl.bfloat16:
        return (quants.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True) - 128.0
    return quants.to(dtype)


@triton.jit
def _spread(groups, ROWS: tl.constexpr, GROUPS: tl.constexpr, EACH: tl.constexpr):
    """A number of each group at each of its columns. [ROWS, GROUPS] -> [ROWS, GROUPS * EACH]."""
    wide = tl.broadcast_to(groups[:, :, None], [ROWS, GROUPS, EACH])
    return tl.reshape(wide, [ROWS, GROUPS * EACH])


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_tokens(
    x_ptr,
    quants_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    num_tokens,
    num_rows,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    NIBBLES: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some rows times all tokens: unpacked in the type of x, then by the matrix units."""
    GROUPS: tl.constexpr = COLUMNS // GROUP
    EACH: tl.constexpr = WIDTH // GROUP
    SHARE: tl.constexpr = 2 if NIBBLES else 1
    BYTES: tl.constexpr = COLUMNS // SHARE
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    is_row, is_token = row < num_rows, token < num_tokens
    at = row.to(tl.int64)[:, None]
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    x_ptr += token[None, :] * WIDTH
    for first in range(0, WIDTH, COLUMNS):
        group = first // GROUP + tl.arange(0, GROUPS)
        inside = is_row[:, None] & (group < EACH)[None, :]
        scale = tl.load(scale_ptr + at * EACH + group[None, :], mask=inside, other=0.0)
        scale = _spread(scale.to(dtype), ROWS, GROUPS, GROUP // SHARE)
        if ONE_ZERO:
            zero = tl.load(zero_ptr).to(dtype)
        else:
            zero = tl.load(zero_ptr + at * EACH + group[None, :], mask=inside, other=0)
            zero = _spread(zero.to(dtype), ROWS, GROUPS, GROUP // SHARE)
        byte = first // SHARE + tl.arange(0, BYTES)
        held = byte < WIDTH // SHARE
        quants = tl.load(
            quants_ptr + at * (WIDTH // SHARE) + byte[None, :],
            mask=is_row[:, None] & held[None, :],
            other=0,
            eviction_policy="evict_first",
        )
        present = held[:, None] & is_token[None, :]
        place = byte[:, None] * SHARE
        x = tl.load(x_ptr + place, mask=present, other=0.0)
        if NIBBLES:
            odd = tl.load(x_ptr + place + 1, mask=present, other=0.0)
            low = (_nibble(quants & 15, dtype) - zero) * scale
            high = (_nibble(quants >> 4, dtype) - zero) * scale
            total = tl.dot(low, x, acc=total, input_precision="ieee")
            total = tl.dot(high, odd, acc=total, input_precision="ieee")
        else:
            matrix = (quants.to(dtype) - zero) * scale
            total = tl.dot(matrix, x, acc=total, input_precision="ieee")
    out = out_ptr + token[None, :] * num_rows + row[:, None]
    tl.store(out, total.to(dtype), mask=is_row[:, None] & is_token[None, :])


@triton.jit
def _unpack(
    quants_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ONE_ZERO: tl.constexpr,
    NIBBLES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    place = row * (WIDTH // GROUP) + column // GROUP
    scale = tl.load(scale_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if ONE_ZERO:
        zero = tl.load(zero_ptr).to(tl.float32)
    else:
        zero = tl.load(zero_ptr + place, mask=inside, other=0).to(tl.float32)
    if NIBBLES:
        held = tl.load(quants_ptr + row * (WIDTH // 2) + column // 2, mask=inside, other=0)
        quants = (held >> ((column % 2) * 4).to(tl.uint8)) & 15
    else:
        quants = tl.load(quants_ptr + row * WIDTH + column, mask=inside, other=0)
    value = (quants.to(tl.float32) - zero) * scale
    tl.store(out_ptr + row * WIDTH + column, value.to(out_ptr.dtype.element_ty), mask=inside)
