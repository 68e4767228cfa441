"""Decode attention over pages of 8 bits in Triton: numbers are widened by their bits, in pairs.

Pages are read as pairs of neighbouring entries, 16 bits each, so that the matrix units get them as
they get short floats: no byte is moved alone. Even and odd entries of a head are two products.
Making a float of 8 bits by the card's own conversion is what took as long as reading 16 bits did.
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

from cutaway.kernels.floats8.triton_pairs import (
    E4M3_AS_BFLOAT,
    E4M3_AS_HALF,
    INT8_AS_BFLOAT,
    INT8_AS_HALF,
    even_bits,
    odd_bits,
)
from cutaway.kernels.triton_launches import await_last, start_next

_KINDS = {
    (torch.float8_e4m3fn, torch.bfloat16): E4M3_AS_BFLOAT,
    (torch.float8_e4m3fn, torch.float16): E4M3_AS_HALF,
    (torch.int8, torch.bfloat16): INT8_AS_BFLOAT,
    (torch.int8, torch.float16): INT8_AS_HALF,
}
_LEAST_SIZE = 32  # of a head: two halves of 16 entries, which the matrix units take at once


def kind_of(pages: Tensor, query: Tensor) -> int | None:
    """How entries of pages become the query's type; None where no form has been written."""
    size = pages.shape[3]
    are_pairs = size % 2 == 0 and size >= _LEAST_SIZE and not any(s % 2 for s in pages.stride()[:3])
    return _KINDS.get((pages.dtype, query.dtype)) if are_pairs else None


def pairs(pages: Tensor) -> Tensor:
    """Neighbouring entries as one number of 16 bits. Shapes: [N, P, G, C] -> [N, P, G, C / 2]."""
    return pages.view(torch.int16)


@triton.jit(do_not_specialize=["splits", "row_stride", "column_stride"])
def decode_eighths(
    query_ptr,
    key_ptr,
    value_ptr,
    key_scale_ptr,
    value_scale_ptr,
    table_ptr,
    length_ptr,
    start_ptr,
    out_ptr,
    partial_ptr,
    weight_ptr,
    sinks_ptr,
    scale,
    cap,
    row_stride,
    column_stride,
    page_stride,
    token_stride,
    head_stride,
    scale_page_stride,
    scale_token_stride,
    scale_head_stride,
    splits,
    KIND: tl.constexpr,
    ASM: tl.constexpr,
    IS_RAGGED: tl.constexpr,
    NUM_QUERIES: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    FIRST: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One sequence, one key head, one share of the keys; strides of pages count pairs."""
    start_next(EARLY)
    await_last(EARLY)
    # Powers of two that bring queries, weights and sums to where float32 and short floats are fine.
    LIFT: tl.constexpr = 1.2089258196146292e24 if KIND == 0 else 1.0  # 2^80, of queries and weights
    KEY_BACK: tl.constexpr = 1099511627776.0 if KIND == 0 else 256.0 if KIND == 1 else 1.0  # 2^40
    dtype: tl.constexpr = query_ptr.dtype.element_ty
    sequence = tl.program_id(0)
    group = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(length_ptr + sequence).to(tl.int32)
    row = tl.arange(0, ROWS)
    entry = tl.arange(0, HALF)
    is_entry = entry < SIZE // 2
    member = row % SHARED
    head = group * (NUM_HEADS // NUM_GROUPS) + member
    token = row // SHARED
    first_query = sequence.to(tl.int64) * NUM_QUERIES
    num_queries = NUM_QUERIES
    if IS_RAGGED:
        first_query = tl.load(start_ptr + sequence)
        num_queries = (tl.load(start_ptr + sequence + 1) - first_query).to(tl.int32)
    is_row = (member < NUM_HEADS // NUM_GROUPS) & (token < num_queries)
    nearest = length - num_queries
    position = nearest + token
    place = (first_query + token) * NUM_HEADS + head
    inside = is_row[:, None] & is_entry[None, :]
    query_at = query_ptr + place[:, None] * SIZE + entry[None, :] * 2
    query_even = (tl.load(query_at, mask=inside, other=0.0) * LIFT).to(dtype)
    query_odd = (tl.load(query_at + 1, mask=inside, other=0.0) * LIFT).to(dtype)
    start = 0
    if WINDOW:
        if FIRST == 0:
            start = tl.maximum(0, nearest - WINDOW + 1) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(length - start, KEYS), splits) * KEYS
    begin = start + split * share
    end = tl.minimum(begin + share, length)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    even = tl.zeros([ROWS, HALF], tl.float32)
    odd = tl.zeros([ROWS, HALF], tl.float32)
    table_ptr += sequence.to(tl.int64) * row_stride
    for first in range(begin, end, KEYS):
        key_position = first + tl.arange(0, KEYS)
        exists = key_position < length
        if WINDOW:
            exists = exists & ((key_position > nearest - WINDOW) | (key_position < FIRST))
        page = tl.load(table_ptr + (key_position // PAGE) * column_stride, mask=exists, other=0)
        page, offset = page.to(tl.int64), (key_position % PAGE).to(tl.int64)
        at = page * page_stride + offset * token_stride + group * head_stride
        scale_at = page * scale_page_stride + offset * scale_token_stride
        scale_at += group * scale_head_stride
        held = exists[:, None] & is_entry[None, :]
        key = tl.load(key_ptr + at[:, None] + entry[None, :], mask=held, other=0)
        key_scale = tl.load(key_scale_ptr + scale_at, mask=exists, other=0.0)
        value = tl.load(value_ptr + at[:, None] + entry[None, :], mask=held, other=0)
        value_scale = tl.load(value_scale_ptr + scale_at, mask=exists, other=0.0)
        key_even = even_bits(key, KIND, ASM).to(dtype, bitcast=True)
        scores = tl.dot(query_even, tl.trans(key_even))
        key_odd = odd_bits(key, KIND, ASM).to(dtype, bitcast=True)
        scores = tl.dot(query_odd, tl.trans(key_odd), acc=scores)
        scores *= (key_scale * (scale * KEY_BACK))[None, :]
        if HAS_CAP:
            # As attention/triton.py has it, in base 2 behind the cap.
            scores = cap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / cap))) * 1.4426950408889634
        visible = exists[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOW:
            is_near = key_position[None, :] > position[:, None] - WINDOW
            visible = visible & (is_near | (key_position < FIRST)[None, :])
        scores = tl.where(visible, scores, -float("inf"))
        new = tl.maximum(highest, tl.max(scores, 1))
        reference = tl.where(new == -float("inf"), 0.0, new)
        weights = tl.exp2(scores - reference[:, None])
        kept = tl.exp2(highest - reference)
        total = total * kept + tl.sum(weights, 1)
        highest = new
        weights = (weights * (value_scale * LIFT)[None, :]).to(dtype)
        value_even = even_bits(value, KIND, ASM).to(dtype, bitcast=True)
        even = tl.dot(weights, value_even, acc=even * kept[:, None])
        value_odd = odd_bits(value, KIND, ASM).to(dtype, bitcast=True)
        odd = tl.dot(weights, value_odd, acc=odd * kept[:, None])
    if IS_SPLIT:
        place = place * splits + split
        divisor = tl.where(total > 0, total, 1.0)
        back = KEY_BACK / divisor
        logarithm = tl.where(total > 0, highest + tl.log2(divisor), -float("inf"))
        out = partial_ptr + place[:, None] * SIZE + entry[None, :] * 2
        tl.store(out, even * back[:, None], mask=inside)
        tl.store(out + 1, odd * back[:, None], mask=inside)
        tl.store(weight_ptr + place, logarithm, mask=is_row)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32)
            total += tl.exp2(sink * 1.4426950408889634 - highest)
        back = KEY_BACK / tl.where(total > 0, total, 1.0)
        out = out_ptr + place[:, None] * SIZE + entry[None, :] * 2
        tl.store(out, (even * back[:, None]).to(dtype), mask=inside)
        tl.store(out + 1, (odd * back[:, None]).to(dtype), mask=inside)
