"""Attention over pages in Triton: decode steps split over keys, and chunks of prompts.

Rows of a block are a few queries times the heads that share a key head, so that keys and values
are read once for all of them. Softmax runs in base 2 and float32, products in the query's dtype.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.core.layout import Window
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import gathered
from cutaway.kernels.attention import triton_eighths as eighths
from cutaway.kernels.attention.plain import Scoring
from cutaway.kernels.attention.triton_splits import count_at_once, merge_last, merge_splits
from cutaway.kernels.triton_launches import await_last, counters, early, start_next

# Whether of a sequence alone in its step keys are read before the kernel in front is done, which
# changes no bit: a decode step of one sequence is a chain of kernels that wait for each other.
READS_AHEAD = True

_LOG2_E = 1.4426950408889634
_FEW_PROGRAMS = 264  # two for each multiprocessor of an H100 or H200
_ENOUGH_PROGRAMS = 512  # of half the size
_MANY_PROGRAMS = 768
_MOST_SPLITS = 64
_MOST_AHEAD = 1 << 14  # bytes of keys that a program reads ahead into registers
# Queries of a sequence whose keys are split. Longer chunks are summed alike, whatever their length.
_MOST_DECODE_QUERIES, _MOST_DECODE_ROWS = 8, 64


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
    if plan.most_queries is not None:
        places = (page_table, query_starts, context_lengths)
        _ragged(query, out, pages, places, plan.most_queries, scoring)
        return out
    # The sequences at the front that bring equally many queries, few of them: their keys are split.
    count, length = _alike(plan)
    shared = query.shape[1] // key_pages.shape[2]
    rows = length * triton.next_power_of_2(shared)
    if length > _MOST_DECODE_QUERIES or rows > _MOST_DECODE_ROWS:
        count = 0
    if count:
        past = count * length
        _decode(
            *(query[:past], out[:past], pages, page_table[:count], context_lengths[:count]),
            *(length, scoring),
            is_alone=len(plan.query_lengths) == 1,
        )
    if count == len(plan.query_lengths):
        return out
    is_eager = plan.bucket is None  # what is captured stands for contexts of any length
    if is_eager and key_scales is None and gathered.takes(query, key_pages, plan, count, scoring):
        gathered.attend_chunks(
            *(query, out, key_pages, value_pages),
            page_table=page_table[count:],
            query_starts=query_starts[count:],
            context_lengths=context_lengths[count:],
            plan=plan,
            first=count,
            scoring=scoring,
        )
    else:
        longest = max(plan.query_lengths[count:])
        _chunks(
            *(query, out, pages, page_table[count:], query_starts[count:]),
            *(context_lengths[count:], longest, scoring),
        )
    return out


def _ragged(
    query: Tensor,
    out: Tensor,
    pages: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    places: tuple[Tensor, Tensor, Tensor],
    longest: int,
    scoring: Scoring,
) -> None:
    """Sequences of at most so many queries, each of as many as the device finds.

    places: page table, query starts and context lengths. Every query belongs to a sequence.
    """
    shared = triton.next_power_of_2(query.shape[1] // pages[0].shape[2])
    if longest * shared > _MOST_DECODE_ROWS:
        _chunks(query, out, pages, *places, longest, scoring)
        return
    page_table, query_starts, context_lengths = places
    _decode(query, out, pages, page_table, context_lengths, longest, scoring, query_starts)


def _alike(plan: ShapePlan) -> tuple[int, int]:
    """How many sequences at the front bring equally many queries, and how many those are."""
    length = plan.query_lengths[0]
    count = 0
    for each in plan.query_lengths:
        if each != length:
            break
        count += 1
    return count, length


def _decode(
    query: Tensor,
    out: Tensor,
    pages: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    page_table: Tensor,
    context_lengths: Tensor,
    num_queries: int,
    scoring: Scoring,
    query_starts: Tensor | None = None,
    *,
    is_alone: bool = False,
) -> None:
    """query_starts: where sequences bring different numbers of queries, num_queries at most.

    is_alone: whether the step is of one sequence: nothing of it writes keys that were there before.
    """
    key_pages, key_scales = pages[0], pages[2]
    _, num_heads, size = query.shape
    page_size, num_groups = key_pages.shape[1:3]
    num_sequences, width = page_table.shape
    shared = triton.next_power_of_2(num_heads // num_groups)
    rows = max(16, triton.next_power_of_2(num_queries * shared))
    kind = eighths.kind_of(key_pages, query) if key_scales is not None else None
    shares = _share_keys(query, rows, num_sequences * num_groups, is_wide=kind is None)
    block, warps, splits = shares
    splits = min(splits, triton.cdiv(width * page_size, block), _MOST_SPLITS)
    # Programs that do not read ahead do not merge: a step of the 8B shape in 4 bits took 1.92 ms on
    # an H200 in place of 1.83, perhaps as the product behind is there sooner and reads before them.
    at_once, lines = None, triton.next_power_of_2(num_queries) * shared
    is_short = block * size * query.element_size() <= _MOST_AHEAD and key_scales is None
    reads_ahead = READS_AHEAD and is_alone and is_short
    if reads_ahead:
        at_once = count_at_once(lines, size, warps=warps, splits=splits)
    partial, weight = out, out
    if splits > 1:
        partial = query.new_empty(len(query), num_heads, splits, size, dtype=torch.float32)
        weight = query.new_empty(len(query), num_heads, splits, dtype=torch.float32)
    entries: dict[str, Any] = {}
    if kind is None:
        kernel, entries["BLOCK"] = _decode_keys, max(16, triton.next_power_of_2(size))
        entries |= {"HAS_SCALES": key_scales is not None, "AHEAD": reads_ahead}
        entries |= {"LINES": lines, "AT_ONCE": at_once or 0}
        entries["arrived_ptr"] = out if at_once is None else counters(out.device)
    else:
        kernel, entries["HALF"] = eighths.decode_eighths, triton.next_power_of_2(size // 2)
        entries |= {"KIND": kind, "ASM": query.is_cuda}
        pages = (eighths.pairs(pages[0]), eighths.pairs(pages[1]), *pages[2:])
    kernel[(num_sequences, num_groups, splits)](
        *(query, *addresses_of(pages), page_table, context_lengths),
        *(context_lengths if query_starts is None else query_starts, out, partial, weight),
        *numbers_of(scoring, query),
        *(page_table.stride(0), page_table.stride(1), *strides_of(pages), splits),
        **entries,
        IS_RAGGED=query_starts is not None,
        NUM_QUERIES=num_queries,
        NUM_HEADS=num_heads,
        NUM_GROUPS=num_groups,
        SIZE=size,
        PAGE=page_size,
        HAS_SINKS=scoring.sinks is not None,
        HAS_CAP=scoring.cap is not None,
        WINDOW=scoring.extent.width if isinstance(scoring.extent, Window) else 0,
        FIRST=scoring.extent.sinks if isinstance(scoring.extent, Window) else 0,
        IS_SPLIT=splits > 1,
        SHARED=shared,
        ROWS=rows,
        KEYS=block,
        **early(query),
        num_warps=warps,
        num_stages=2,  # on an H200 three are a quarter slower at 64 sequences
    )
    if splits > 1 and at_once is None:
        merge_splits(partial, weight, scoring.sinks, out)


def _share_keys(
    query: Tensor, rows: int, num_pairs: int, *, is_wide: bool = True
) -> tuple[int, int, int]:
    """Keys at once, warps and splits, for so many pairs of a sequence and a key head.

    is_wide: whether pages hold more than 8 bits a number.
    By the shape alone: a step of the same shape is summed in the same order. Measured on an H200,
    bfloat16, heads of 128: 8 and 64 sequences of 1,024 tokens, and 37 to 256 of 100 to 2,000.
    """
    size = query.shape[-1]
    few = triton.cdiv(_FEW_PROGRAMS, num_pairs)
    if rows > 16 or query.dtype == torch.float32 or size > 128:
        return _keys_at_once(query, size), 4, few
    if num_pairs >= _MANY_PROGRAMS:
        return (128, 4, 1) if is_wide else (64, 2, 1)
    if 2 * num_pairs >= _FEW_PROGRAMS:
        return 64, 2, triton.cdiv(_ENOUGH_PROGRAMS, num_pairs)
    return (128 if 8 * num_pairs >= _FEW_PROGRAMS else 64), 4, few


def _chunks(
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
    _, num_heads, size = query.shape
    page_size, num_groups = key_pages.shape[1:3]
    shared = triton.next_power_of_2(num_heads // num_groups)
    is_large = query.dtype == torch.float32 or size > 128
    most = 32 if is_large else 128
    rows = max(16, shared) if longest * shared <= 16 else max(most, shared)
    _attend_chunks[(triton.cdiv(longest * shared, rows), num_groups, len(context_lengths))](
        *(query, *addresses_of(pages), page_table, query_starts, context_lengths, out),
        *numbers_of(scoring, query),
        *(page_table.stride(0), page_table.stride(1), *strides_of(pages)),
        NUM_HEADS=num_heads,
        NUM_GROUPS=num_groups,
        SIZE=size,
        PAGE=page_size,
        HAS_SCALES=key_scales is not None,
        HAS_SINKS=scoring.sinks is not None,
        HAS_CAP=scoring.cap is not None,
        WINDOW=scoring.extent.width if isinstance(scoring.extent, Window) else 0,
        FIRST=scoring.extent.sinks if isinstance(scoring.extent, Window) else 0,
        SHARED=shared,
        ROWS=rows,
        KEYS=32 if is_large else 128,
        BLOCK=max(16, triton.next_power_of_2(size)),
        num_warps=8 if rows == 128 and size > 64 else 4,
        num_stages=2 if is_large else 3,
    )


def _keys_at_once(query: Tensor, size: int) -> int:
    # What fits in shared memory with some stages in flight.
    return 64 if query.dtype != torch.float32 and size <= 128 else 32


def addresses_of(pages: tuple[Tensor, Tensor, Tensor | None, Tensor | None]) -> tuple[Tensor, ...]:
    """Keys, values and scales as kernels take them; where there are no scales, any tensor."""
    key, value, key_scales, value_scales = pages
    return (
        *(key, value, key if key_scales is None else key_scales),
        value if value_scales is None else value_scales,
    )


def strides_of(pages: tuple[Tensor, Tensor, Tensor | None, Tensor | None]) -> tuple[int, ...]:
    """Of page, token and head: keys' and values' alike, and of their scales."""
    key, value, key_scales, _ = pages
    assert key.stride() == value.stride() and key.stride(3) == 1, "entries of a head lie together"
    scales = (0, 0, 0) if key_scales is None else key_scales.stride()
    return (*key.stride()[:3], *scales)


def numbers_of(scoring: Scoring, query: Tensor) -> tuple[Tensor, float, float]:
    """Sinks, the scale in base 2, and the cap."""
    sinks = query if scoring.sinks is None else scoring.sinks
    cap = 0.0 if scoring.cap is None else scoring.cap
    scale = scoring.softmax_scale if cap else scoring.softmax_scale * _LOG2_E
    return sinks, scale, cap


@triton.jit
def attend_keys(
    state,
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
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    FIRST: tl.constexpr,
    IS_MASKED: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    SUMS_BY_DOT: tl.constexpr = False,
    ahead=0,
    IS_AHEAD: tl.constexpr = False,
):
    """Take one block of keys into the running softmax: highest score, sum of weights, values.

    SUMS_BY_DOT: weights are summed as values are, in an order that no layout of lanes changes.
    ahead: what _read_ahead gave, where IS_AHEAD: only what the step itself wrote is missing there.
    """
    highest, total, mixed = state
    key_position, exists = _positions(first, end, nearest, WINDOW, FIRST, KEYS)
    entry = tl.arange(0, BLOCK)
    inside = exists[:, None] & (entry < SIZE)[None, :]
    if IS_AHEAD:
        place, key, value = ahead  # pyright: ignore[reportGeneralTypeIssues]
        inside = inside & (key_position >= nearest)[:, None]
        key = tl.load(key_ptr + place[:, None] + entry[None, :], mask=inside, other=key)
        value = tl.load(value_ptr + place[:, None] + entry[None, :], mask=inside, other=value)
    else:
        page = tl.load(table_ptr + (key_position // PAGE) * column_stride, mask=exists, other=0)
        page, offset = page.to(tl.int64), (key_position % PAGE).to(tl.int64)
        place = page * page_stride + offset * token_stride + group * head_stride
        key = tl.load(key_ptr + place[:, None] + entry[None, :], mask=inside, other=0.0)
    scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
    if HAS_SCALES:
        scale_place = page * scale_page_stride + offset * scale_token_stride
        scale_place += group * scale_head_stride
        scores *= tl.load(key_scale_ptr + scale_place, mask=exists, other=0.0)[None, :]
    scores *= scale
    if HAS_CAP:
        # cap * tanh(scores / cap), by an exponential that cannot overflow to NaN; then base 2.
        scores = cap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / cap))) * 1.4426950408889634
    if IS_MASKED:
        visible = exists[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOW:
            is_near = key_position[None, :] > position[:, None] - WINDOW
            visible = visible & (is_near | (key_position < FIRST)[None, :])
        scores = tl.where(visible, scores, -float("inf"))
    new = tl.maximum(highest, tl.max(scores, 1))
    # A row that sees nothing yet would give -inf - -inf.
    reference = tl.where(new == -float("inf"), 0.0, new)
    weights = tl.exp2(scores - reference[:, None])
    kept = tl.exp2(highest - reference)
    if SUMS_BY_DOT:
        ones = tl.full([KEYS, 16], 1.0, query.dtype)
        sums = tl.dot(weights.to(query.dtype), ones, input_precision="ieee")
        total = total * kept + tl.max(sums, 1)  # all sixteen are alike
    else:
        total = total * kept + tl.sum(weights, 1)
    if HAS_SCALES:
        weights *= tl.load(value_scale_ptr + scale_place, mask=exists, other=0.0)[None, :]
    if not IS_AHEAD:
        value = tl.load(value_ptr + place[:, None] + entry[None, :], mask=inside, other=0.0)
    value = value.to(query.dtype)
    mixed = tl.dot(
        weights.to(query.dtype), value, acc=mixed * kept[:, None], input_precision="ieee"
    )
    return new, total, mixed


@triton.jit
def _positions(first, end, nearest, WINDOW: tl.constexpr, FIRST: tl.constexpr, KEYS: tl.constexpr):
    """Positions of a block of keys, and whether any query may see them."""
    position = first + tl.arange(0, KEYS)
    exists = position < end
    if WINDOW:
        # A page that left the window may hold anything, and 0 * NaN is NaN.
        exists = exists & ((position > nearest - WINDOW) | (position < FIRST))
    return position, exists


@triton.jit
def _read_ahead(
    key_ptr,
    value_ptr,
    table_ptr,
    nearest,
    first,
    end,
    group,
    column_stride,
    page_stride,
    token_stride,
    head_stride,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    FIRST: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of keys and values in front of the queries, and where all of it lies in the pages."""
    position, exists = _positions(first, end, nearest, WINDOW, FIRST, KEYS)
    entry = tl.arange(0, BLOCK)
    page = tl.load(table_ptr + (position // PAGE) * column_stride, mask=exists, other=0)
    page, offset = page.to(tl.int64), (position % PAGE).to(tl.int64)
    place = page * page_stride + offset * token_stride + group * head_stride
    inside = (exists & (position < nearest))[:, None] & (entry < SIZE)[None, :]
    key = tl.load(key_ptr + place[:, None] + entry[None, :], mask=inside, other=0.0)
    value = tl.load(value_ptr + place[:, None] + entry[None, :], mask=inside, other=0.0)
    return place, key, value


@triton.jit(do_not_specialize=["splits", "row_stride", "column_stride"])
def _decode_keys(
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
    arrived_ptr,
    IS_RAGGED: tl.constexpr,
    NUM_QUERIES: tl.constexpr,
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
    AHEAD: tl.constexpr,
    SHARED: tl.constexpr,
    LINES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One sequence, one key head, one share of the keys.

    AHEAD: lengths, page table and keys of earlier steps are there before the kernel in front ends.
    """
    start_next(EARLY)
    if not AHEAD:
        await_last(EARLY)
    sequence = tl.program_id(0)
    group = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(length_ptr + sequence).to(tl.int32)
    row = tl.arange(0, ROWS)
    entry = tl.arange(0, BLOCK)
    member = row % SHARED
    head = group * (NUM_HEADS // NUM_GROUPS) + member
    token = row // SHARED
    first_query = sequence.to(tl.int64) * NUM_QUERIES
    num_queries = NUM_QUERIES
    if IS_RAGGED:
        first_query = tl.load(start_ptr + sequence)
        num_queries = (tl.load(start_ptr + sequence + 1) - first_query).to(tl.int32)
    is_row = (member < NUM_HEADS // NUM_GROUPS) & (token < num_queries)
    nearest = length - num_queries  # position of the first query
    position = nearest + token
    place = (first_query + token) * NUM_HEADS + head
    start = 0
    if WINDOW:
        if FIRST == 0:
            start = tl.maximum(0, nearest - WINDOW + 1) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(length - start, KEYS), splits) * KEYS
    begin = start + split * share
    end = tl.minimum(begin + share, length)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK], tl.float32)
    table_ptr += sequence.to(tl.int64) * row_stride
    if AHEAD:
        ahead = _read_ahead(
            *(key_ptr, value_ptr, table_ptr, nearest, begin, length, group),
            *(column_stride, page_stride, token_stride, head_stride),
            *(SIZE, PAGE, WINDOW, FIRST, KEYS, BLOCK),
        )
        await_last(EARLY)
    inside = is_row[:, None] & (entry < SIZE)[None, :]
    query = tl.load(query_ptr + place[:, None] * SIZE + entry[None, :], mask=inside, other=0.0)
    if AHEAD:
        highest, total, mixed = attend_keys(
            (highest, total, mixed),
            *(query, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr),
            *(table_ptr, position, nearest, begin, length, group, scale, cap),
            *(column_stride, page_stride, token_stride, head_stride),
            *(scale_page_stride, scale_token_stride, scale_head_stride),
            *(SIZE, PAGE, HAS_SCALES, HAS_CAP, WINDOW, FIRST, True, KEYS, BLOCK, False),
            ahead,
            True,
        )
        begin += KEYS
    for first in range(begin, end, KEYS):
        highest, total, mixed = attend_keys(
            (highest, total, mixed),
            query,
            key_ptr,
            value_ptr,
            key_scale_ptr,
            value_scale_ptr,
            table_ptr,
            position,
            nearest,
            first,
            length,
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
        )
    if IS_SPLIT:
        place = place * splits + split
        divisor = tl.where(total > 0, total, 1.0)
        mixed = mixed / divisor[:, None]
        logarithm = tl.where(total > 0, highest + tl.log2(divisor), -float("inf"))
        tl.store(partial_ptr + place[:, None] * SIZE + entry[None, :], mixed, mask=inside)
        tl.store(weight_ptr + place, logarithm, mask=is_row)
        if AT_ONCE:
            merge_last(
                *(partial_ptr, weight_ptr, sinks_ptr, out_ptr, arrived_ptr),
                *(first_query, num_queries, splits, tl.cdiv(length - start, share)),
                *(NUM_HEADS, NUM_GROUPS, SIZE, HAS_SINKS, SHARED, LINES, AT_ONCE, BLOCK),
            )
    else:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32)
            total += tl.exp2(sink * 1.4426950408889634 - highest)
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        out = mixed.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place[:, None] * SIZE + entry[None, :], out, mask=inside)


@triton.jit(do_not_specialize=["row_stride", "column_stride"])
def _attend_chunks(
    query_ptr,
    key_ptr,
    value_ptr,
    key_scale_ptr,
    value_scale_ptr,
    table_ptr,
    start_ptr,
    length_ptr,
    out_ptr,
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
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    FIRST: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some queries of one sequence, one key head, all keys that they see; the last ones first."""
    TOKENS: tl.constexpr = ROWS // SHARED
    block = tl.num_programs(0) - 1 - tl.program_id(0)
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
        # What every row of the block sees needs no mask.
        unmasked = (nearest + 1) // KEYS * KEYS
        if WINDOW:
            unmasked = 0
            if FIRST == 0:
                begin = tl.maximum(0, nearest - WINDOW + 1) // KEYS * KEYS
                unmasked = begin
        end = tl.minimum(nearest + TOKENS, length)
        highest = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, BLOCK], tl.float32)
        table_ptr += sequence * row_stride
        for first in range(begin, unmasked, KEYS):
            highest, total, mixed = attend_keys(
                (highest, total, mixed),
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
            )
        for first in range(unmasked, end, KEYS):
            highest, total, mixed = attend_keys(
                (highest, total, mixed),
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
            )
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=is_row, other=0.0).to(tl.float32)
            total += tl.exp2(sink * 1.4426950408889634 - highest)
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        out = mixed.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place[:, None] * SIZE + entry[None, :], out, mask=inside)
