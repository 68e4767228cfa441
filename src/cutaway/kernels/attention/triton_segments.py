"""Attention over pages in Triton whose rows are summed in one order, whatever else is computed.

Keys are cut into segments at fixed positions. Within a segment they are taken block after block,
and segments are joined in their order: by one program that has them all, or from memory where
several have some. So neither company nor chunks nor how the work is shared out change a bit: a
token that comes in a prompt is attended as one that is decoded.
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

from cutaway.core.layout import Window
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention.plain import Scoring
from cutaway.kernels.attention.triton import addresses_of, attend_keys, numbers_of, strides_of
from cutaway.kernels.triton_launches import await_last, early, start_next

KEYS, SEGMENT = 128, 256  # in a block and in a segment: other numbers give other bits
_ENOUGH_PROGRAMS = 512
_MOST_SPLITS = 64
_JOINED = 8  # segments whose loads are under way together
_CHUNK_ROWS, _CHUNK_WARPS, _CHUNK_STAGES = 128, 8, 2
_MOST_SPLIT_QUERIES = 8  # of a sequence


def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    page_table: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    plan: ShapePlan,
    scoring: Scoring,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """See plain.paged_attention.

    query_starts: first query of each sequence, and their number [B + 1].
    """
    query = query.contiguous()
    out = torch.empty_like(query)
    pages = (key_pages, value_pages, key_scales, value_scales)
    lengths = plan.query_lengths
    # Sequences with few queries stand in front of those with chunks: each sort has its tile.
    few = next((i for i, each in enumerate(lengths) if each > _MOST_SPLIT_QUERIES), len(lengths))
    for part in (slice(0, few), slice(few, len(lengths))):
        if lengths[part]:
            starts = query_starts[part.start : part.stop + 1]
            _attend(
                *(query, out, pages, page_table[part], starts, context_lengths[part]),
                *(max(lengths[part]), scoring),
            )
    return out


def _attend(
    query: Tensor,
    out: Tensor,
    pages: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    page_table: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    longest: int,
    scoring: Scoring,
) -> None:
    key_pages, key_scales = pages[0], pages[2]
    num_tokens, num_heads, size = query.shape
    page_size, num_groups = key_pages.shape[1:3]
    shared = triton.next_power_of_2(num_heads // num_groups)
    rows, warps = _tile(query, longest * shared, shared)
    blocks = triton.cdiv(longest * shared, rows)
    segments = triton.cdiv(page_table.shape[1] * page_size, SEGMENT)
    pairs = len(context_lengths) * num_groups * blocks
    splits = 1
    if longest <= _MOST_SPLIT_QUERIES:
        splits = min(segments, max(1, _ENOUGH_PROGRAMS // pairs), _MOST_SPLITS)
    mixed, weight = out, out
    if splits > 1:
        shape = (num_tokens, num_heads, segments)
        mixed = query.new_empty(*shape, size, dtype=torch.float32)
        weight = query.new_empty(*shape, 2, dtype=torch.float32)
    block = max(16, triton.next_power_of_2(size))
    sinks, scale, cap = numbers_of(scoring, query)
    constants = {
        "NUM_HEADS": num_heads,
        "SIZE": size,
        "HAS_SINKS": scoring.sinks is not None,
        "BLOCK": block,
        "SEGMENT": SEGMENT,
        **early(query),
        # A product and a sum that become one instruction here and two there would differ.
        "enable_fp_fusion": False,
    }
    _attend_segments[(blocks * splits, num_groups, len(context_lengths))](
        *(query, *addresses_of(pages), page_table, query_starts, context_lengths),
        *(out, mixed, weight, sinks, scale, cap),
        *(page_table.stride(0), page_table.stride(1), *strides_of(pages), splits, segments),
        NUM_GROUPS=num_groups,
        PAGE=page_size,
        HAS_SCALES=key_scales is not None,
        HAS_CAP=scoring.cap is not None,
        WINDOW=scoring.extent.width if isinstance(scoring.extent, Window) else 0,
        FIRST=scoring.extent.sinks if isinstance(scoring.extent, Window) else 0,
        IS_SPLIT=splits > 1,
        SHARED=shared,
        ROWS=rows,
        KEYS=KEYS if block <= 128 else 128 * KEYS // block,  # as many as shared memory holds
        **constants,
        num_warps=warps,
        num_stages=_CHUNK_STAGES if rows >= 64 else 2,
    )
    if splits > 1:
        _join_segments[(longest, num_heads, len(context_lengths))](
            *(mixed, weight, query_starts, context_lengths, sinks, out, segments),
            JOINED=_JOINED,
            **constants,
            num_warps=2,
        )


def _tile(query: Tensor, num_rows: int, shared: int) -> tuple[int, int]:
    """Rows of a program, and its warps. They decide speed, and no bit."""
    is_large = query.dtype == torch.float32 or query.shape[-1] > 128
    rows = max(16, shared)
    if num_rows > 64:
        rows = max(32 if is_large else _CHUNK_ROWS, shared)
    elif num_rows > 16:
        rows = max(rows, triton.next_power_of_2(num_rows))
    return rows, _CHUNK_WARPS if rows >= _CHUNK_ROWS else 4


@triton.jit
def _join(highest, later):
    """The highest score of two parts, and what their sums are to be multiplied by."""
    new = tl.maximum(highest, later)
    reference = tl.where(new == -float("inf"), 0.0, new)
    return new, tl.exp2(highest - reference), tl.exp2(later - reference)


@triton.jit
def _divisor(highest, total, sink, HAS_SINKS: tl.constexpr):
    """What the values of a whole softmax are divided by."""
    if HAS_SINKS:
        total += tl.exp2(sink * 1.4426950408889634 - highest)
    return tl.where(total > 0, total, 1.0)


@triton.jit(do_not_specialize=["row_stride", "column_stride", "splits", "segments"])
def _attend_segments(
    query_ptr,
    key_ptr,
    value_ptr,
    key_scale_ptr,
    value_scale_ptr,
    table_ptr,
    start_ptr,
    length_ptr,
    out_ptr,
    mixed_ptr,
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
    segments,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    FIRST: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SEGMENT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some queries of one sequence, one key head: all segments, or every splits-th of them."""
    start_next(EARLY)
    await_last(EARLY)
    TOKENS: tl.constexpr = ROWS // SHARED
    block = (tl.num_programs(0) - 1 - tl.program_id(0)) // splits  # the last ones first
    split = (tl.num_programs(0) - 1 - tl.program_id(0)) % splits
    group = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.load(start_ptr + sequence)
    num_queries = (tl.load(start_ptr + sequence + 1) - start).to(tl.int32)
    if block * TOKENS < num_queries:
        length = tl.load(length_ptr + sequence).to(tl.int32)
        row = tl.arange(0, ROWS)
        entry = tl.arange(0, BLOCK)
        member = row % SHARED
        head = group * (NUM_HEADS // NUM_GROUPS) + member
        token = block * TOKENS + row // SHARED
        is_row = (member < NUM_HEADS // NUM_GROUPS) & (token < num_queries)
        position = length - num_queries + token
        place = (start + token) * NUM_HEADS + head
        inside = is_row[:, None] & (entry < SIZE)[None, :]
        query = tl.load(query_ptr + place[:, None] * SIZE + entry[None, :], mask=inside, other=0.0)
        nearest = length - num_queries + block * TOKENS  # position of the block's first query
        begin = 0
        if WINDOW:
            if FIRST == 0:
                begin = tl.maximum(0, nearest - WINDOW + 1) // KEYS * KEYS
        end = tl.minimum(nearest + TOKENS, length)
        # What every row of the block sees needs no mask; few rows wait for memory anyway.
        seen = 0
        if WINDOW == 0 and ROWS >= 64:
            seen = (nearest + 1) // KEYS * KEYS
        highest = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, BLOCK], tl.float32)
        table_ptr += sequence * row_stride
        # What another block of queries needs of a segment, this one writes as nothing.
        for segment in range(split, tl.cdiv(length, SEGMENT), splits):
            own_highest = tl.full([ROWS], -float("inf"), tl.float32)
            own_total = tl.zeros([ROWS], tl.float32)
            own_mixed = tl.zeros([ROWS, BLOCK], tl.float32)
            own_begin = tl.maximum(begin, segment * SEGMENT)
            own_end = tl.minimum(end, segment * SEGMENT + SEGMENT)
            own_seen = tl.maximum(own_begin, tl.minimum(seen, own_end))
            for first in range(own_begin, own_seen, KEYS):
                own_highest, own_total, own_mixed = attend_keys(
                    (own_highest, own_total, own_mixed),
                    query,
                    key_ptr,
                    value_ptr,
                    key_scale_ptr,
                    value_scale_ptr,
                    table_ptr,
                    position,
                    nearest,
                    first,
                    end,
                    group,
                    scale,
                    cap,
                    column_stride,
                    page_stride,
                    token_stride,
                    head_stride,
                    scale_page_stride,
                    scale_token_stride,
                    scale_head_stride,
                    SIZE,
                    PAGE,
                    HAS_SCALES,
                    HAS_CAP,
                    WINDOW,
                    FIRST,
                    False,
                    KEYS,
                    BLOCK,
                    True,
                )
            for first in range(own_seen, own_end, KEYS):
                own_highest, own_total, own_mixed = attend_keys(
                    (own_highest, own_total, own_mixed),
                    query,
                    key_ptr,
                    value_ptr,
                    key_scale_ptr,
                    value_scale_ptr,
                    table_ptr,
                    position,
                    nearest,
                    first,
                    end,
                    group,
                    scale,
                    cap,
                    column_stride,
                    page_stride,
                    token_stride,
                    head_stride,
                    scale_page_stride,
                    scale_token_stride,
                    scale_head_stride,
                    SIZE,
                    PAGE,
                    HAS_SCALES,
                    HAS_CAP,
                    WINDOW,
                    FIRST,
                    True,
                    KEYS,
                    BLOCK,
                    True,
                )
            if IS_SPLIT:
                share = place * segments + segment
                target = mixed_ptr + share[:, None] * SIZE + entry[None, :]
                tl.store(target, own_mixed, mask=inside)
                tl.store(weight_ptr + share * 2, own_highest, mask=is_row)
                tl.store(weight_ptr + share * 2 + 1, own_total, mask=is_row)
            else:
                highest, kept, taken = _join(highest, own_highest)
                total = total * kept + own_total * taken
                mixed = mixed * kept[:, None] + own_mixed * taken[:, None]
        if not IS_SPLIT:
            sink = highest
            if HAS_SINKS:
                sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32)
            mixed = mixed / _divisor(highest, total, sink, HAS_SINKS)[:, None]
            out = mixed.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + place[:, None] * SIZE + entry[None, :], out, mask=inside)


@triton.jit(do_not_specialize=["segments"])
def _join_segments(
    mixed_ptr,
    weight_ptr,
    start_ptr,
    length_ptr,
    sinks_ptr,
    out_ptr,
    segments,
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    JOINED: tl.constexpr,
    SEGMENT: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The segments of one query and head, in their order."""
    start_next(EARLY)
    await_last(EARLY)
    query = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.load(start_ptr + sequence)
    num_queries = (tl.load(start_ptr + sequence + 1) - start).to(tl.int32)
    if query < num_queries:
        place = (start + query) * NUM_HEADS + head
        count = tl.cdiv(tl.load(length_ptr + sequence).to(tl.int32), SEGMENT)
        entry = tl.arange(0, BLOCK)
        inside = entry < SIZE
        highest = -float("inf")
        total = 0.0
        mixed = tl.zeros([BLOCK], tl.float32)
        for first in range(0, count, JOINED):
            for each in tl.static_range(JOINED):
                exists = count > first + each
                share = place * segments + first + each
                later = tl.load(weight_ptr + share * 2, mask=exists, other=-float("inf"))
                sums = tl.load(weight_ptr + share * 2 + 1, mask=exists, other=0.0)
                source = mixed_ptr + share * SIZE + entry
                there = inside & (first + each + entry * 0 < count)
                values = tl.load(source, mask=there, other=0.0)
                highest, kept, taken = _join(highest, later)
                total = total * kept + sums * taken
                mixed = mixed * kept + values * taken
        sink = highest
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head).to(tl.float32)
        mixed = mixed / _divisor(highest, total, sink, HAS_SINKS)
        tl.store(out_ptr + place * SIZE + entry, mixed.to(out_ptr.dtype.element_ty), mask=inside)
