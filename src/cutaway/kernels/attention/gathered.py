"""Attention of long chunks in Triton: keys and values are copied out of their pages first.

As rows that lie together they are fetched by the card's copy engine, whole tiles at once, where
pages cost an address for each row. The copy is some percent of what it saves.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cutaway.core.layout import Full
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention.plain import Scoring

_LOG2_E = 1.4426950408889634
KEYS = 64  # in a tile; a sequence's rows fill whole tiles
# So that two blocks share a multiprocessor: one begins or ends while the other multiplies.
_ROWS, _WARPS, _STAGES, _REGISTERS = 128, 8, 2, 128
# Queries of the longest chunk, from which on copying pays, and rows that are copied at most.
LEAST_QUERIES, _MOST_COPIED = 256, 1 << 18
_COPIED = 32  # rows of a program


def takes(query: Tensor, key_pages: Tensor, plan: ShapePlan, first: int, scoring: Scoring) -> bool:
    """Whether a step's sequences from the first chunk on are attended so.

    It follows from the step's shape and the layer's settings alone, which a replay has too.
    """
    size, kept = query.shape[-1], key_pages.dtype
    if size not in (64, 128) or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    if kept != query.dtype or not isinstance(scoring.extent, Full) or scoring.cap is not None:
        return False
    if scoring.softmax_scale <= 0 or not key_pages.is_contiguous():
        return False
    longest = max(plan.query_lengths[first:])
    return longest >= LEAST_QUERIES and sum(_rows(plan.context_lengths[first:])) <= _MOST_COPIED


def _rows(context_lengths: Sequence[int]) -> list[int]:
    """Rows of each sequence: whole tiles."""
    return [-(-length // KEYS) * KEYS for length in context_lengths]


def attend_chunks(
    query: Tensor,
    out: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    page_table: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    plan: ShapePlan,
    first: int,
    scoring: Scoring,
) -> None:
    """Attend the sequences from one on; tables, starts and lengths are theirs alone.

    Shapes: query [T, H, C] -> out [T, H, C]; pages [N, P, G, C]; page_table [B, M].
    """
    _, num_heads, size = query.shape
    page_size, num_groups = key_pages.shape[1:3]
    most = max(_rows(plan.context_lengths[first:]))
    total = sum(_rows(plan.context_lengths[first:]))
    keys, values = (
        torch.empty(total, num_groups * size, dtype=query.dtype, device=query.device)
        for _ in range(2)
    )
    _copy_pages[(most // _COPIED, len(context_lengths))](
        *(key_pages, value_pages, page_table, context_lengths, keys, values),
        *(page_table.stride(0), page_table.stride(1), *key_pages.stride()[:2]),
        PAGE=page_size,
        WIDTH=num_groups * size,
        KEYS=KEYS,
        ROWS=_COPIED,
        BLOCK=triton.next_power_of_2(num_groups * size),
        num_warps=8,
    )
    shared = triton.next_power_of_2(num_heads // num_groups)
    longest = max(plan.query_lengths[first:])
    tiles = [TensorDescriptor.from_tensor(each, [KEYS, size]) for each in (keys, values)]
    _attend_rows[(num_groups, triton.cdiv(longest * shared, _ROWS), len(context_lengths))](
        *(query, *tiles, query_starts, context_lengths, out),
        query if scoring.sinks is None else scoring.sinks,
        scoring.softmax_scale * _LOG2_E,
        NUM_HEADS=num_heads,
        NUM_GROUPS=num_groups,
        SIZE=size,
        HAS_SINKS=scoring.sinks is not None,
        SHARED=shared,
        ROWS=_ROWS,
        KEYS=KEYS,
        num_warps=_WARPS,
        num_stages=_STAGES,
        maxnreg=_REGISTERS,
    )


@triton.jit
def _first_row(length_ptr, sequence, KEYS: tl.constexpr):
    """Where a sequence's rows begin: behind those of all before it."""
    total = 0
    for first in range(0, sequence.to(tl.int32), 256):
        index = first + tl.arange(0, 256)
        length = tl.load(length_ptr + index, mask=index < sequence, other=0).to(tl.int32)
        total += tl.sum(tl.cdiv(length, KEYS), 0) * KEYS
    return total


@triton.jit(do_not_specialize=["row_stride", "column_stride"])
def _copy_pages(
    key_ptr,
    value_ptr,
    table_ptr,
    length_ptr,
    keys_ptr,
    values_ptr,
    row_stride,
    column_stride,
    page_stride,
    token_stride,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some keys and values of a sequence in order; zeros behind its last, up to a whole tile."""
    sequence = tl.program_id(1).to(tl.int64)
    length = tl.load(length_ptr + sequence).to(tl.int32)
    first = tl.program_id(0) * ROWS
    if first < tl.cdiv(length, KEYS) * KEYS:
        position = first + tl.arange(0, ROWS)
        exists = position < length
        entry = tl.arange(0, BLOCK)
        table_ptr += sequence * row_stride
        page = tl.load(table_ptr + (position // PAGE) * column_stride, mask=exists, other=0)
        place = page.to(tl.int64) * page_stride + (position % PAGE).to(tl.int64) * token_stride
        source = place[:, None] + entry[None, :]
        inside = exists[:, None] & (entry < WIDTH)[None, :]
        key = tl.load(key_ptr + source, mask=inside, other=0.0)
        value = tl.load(value_ptr + source, mask=inside, other=0.0)
        row = _first_row(length_ptr, sequence, KEYS) + position
        target = row.to(tl.int64)[:, None] * WIDTH + entry[None, :]
        tl.store(keys_ptr + target, key, mask=(entry < WIDTH)[None, :])
        tl.store(values_ptr + target, value, mask=(entry < WIDTH)[None, :])


@triton.jit
def _attend_rows(
    query_ptr,
    keys,
    values,
    start_ptr,
    length_ptr,
    out_ptr,
    sinks_ptr,
    scale,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Some queries of one sequence, one key head, all keys that they see; the last ones first."""
    TOKENS: tl.constexpr = ROWS // SHARED
    group = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.load(start_ptr + sequence)
    num_queries = (tl.load(start_ptr + sequence + 1) - start).to(tl.int32)
    if block * TOKENS < num_queries:
        length = tl.load(length_ptr + sequence).to(tl.int32)
        base = _first_row(length_ptr, sequence, KEYS)
        row = tl.arange(0, ROWS)
        entry = tl.arange(0, SIZE)
        member = row % SHARED
        head = group * (NUM_HEADS // NUM_GROUPS) + member
        token = block * TOKENS + row // SHARED
        is_row = (member < NUM_HEADS // NUM_GROUPS) & (token < num_queries)
        position = length - num_queries + token
        place = (start + token) * NUM_HEADS + head
        inside = is_row[:, None]
        query = tl.load(query_ptr + place[:, None] * SIZE + entry[None, :], mask=inside, other=0.0)
        nearest = length - num_queries + block * TOKENS  # position of the block's first query
        end = tl.minimum(nearest + TOKENS, length)
        highest = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, SIZE], tl.float32)
        # The first tile holds a key that every row sees: no row's highest score stays -inf.
        for first in tl.range(0, end, KEYS):
            key = keys.load([base + first, group * SIZE])
            scores = tl.dot(query, key.T)
            visible = (first + tl.arange(0, KEYS))[None, :] <= position[:, None]
            scores = tl.where(visible, scores, -float("inf"))
            new = tl.maximum(highest, tl.max(scores, 1) * scale)
            weights = tl.exp2(scores * scale - new[:, None])
            kept = tl.exp2(highest - new)
            total = total * kept + tl.sum(weights, 1)
            value = values.load([base + first, group * SIZE])
            mixed = tl.dot(weights.to(value.dtype), value, mixed * kept[:, None])
            highest = new
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32)
            total += tl.exp2(sink * 1.4426950408889634 - highest)
        out = (mixed / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place[:, None] * SIZE + entry[None, :], out, mask=inside)
