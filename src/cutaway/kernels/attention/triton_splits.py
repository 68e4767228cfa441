"""One result of what several programs have of a row's keys, in Triton: in the order of the splits.

Where a step is of one sequence, the last program of a key head to be done merges them, else a
kernel behind all programs. Both take one split after the other by the same instructions, so that
the bits are the same.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.triton_launches import await_last, early, start_next

# Whether programs that have few rows and read keys ahead merge them; the bits are the same.
MERGES_ALONG = True
# Numbers that a thread may wait for at once. With 128, 64 splits, compiling takes half a minute.
_UNDER_WAY = 64
_LEAST_AT_ONCE = 8  # splits: taken in more parts they would cost more than a launch


def count_at_once(num_lines: int, size: int, *, warps: int, splits: int) -> int | None:
    """How many splits a last program reads at once; None where a kernel of its own merges.

    A launch and the wait for it are most of what few rows cost. Where a program has many, of
    guesses or of heads that share a key, each is better merged by a program of its own.

    num_lines: rows of a program, a power of two.   size: of a head.
    """
    at_once = _count_fitting(num_lines, size, warps, splits)
    is_quick = at_once >= min(splits, _LEAST_AT_ONCE)
    return at_once if MERGES_ALONG and splits > 1 and is_quick else None


def _count_fitting(num_lines: int, size: int, warps: int, splits: int) -> int:
    room = _UNDER_WAY * 32 * warps // (num_lines * triton.next_power_of_2(size))
    return max(1, min(room, triton.next_power_of_2(splits)))


def merge_splits(partial: Tensor, weight: Tensor, sinks: Tensor | None, out: Tensor) -> None:
    """Merge by a program for each row.

    weight: logarithm in base 2 of the sum of a split's weights; a sink's score is in base e.
    Shapes: partial [T, H, splits, C], weight [T, H, splits], sinks [H] -> out [T, H, C].
    """
    num_tokens, num_heads, splits, size = partial.shape
    warps = 2
    _merge_row[(num_tokens, num_heads)](
        *(partial, weight, out if sinks is None else sinks, out, splits),
        NUM_HEADS=num_heads,
        SIZE=size,
        HAS_SINKS=sinks is not None,
        AT_ONCE=_count_fitting(1, size, warps, splits),
        BLOCK=triton.next_power_of_2(size),
        **early(out),
        num_warps=warps,
    )


@triton.jit
def merge_last(
    partial_ptr,
    weight_ptr,
    sinks_ptr,
    out_ptr,
    arrived_ptr,
    first_query,
    num_queries,
    splits,
    used,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SHARED: tl.constexpr,
    LINES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of the programs of one key head, which have stored theirs, the last one merges.

    used: splits at the front that have keys. The counter is 0 again for the kernel behind, which
    waits for this one before it counts.
    """
    group = tl.program_id(1)
    arrived_ptr += group
    tl.debug_barrier()  # all threads have stored; what they stored is there before the count is
    before = tl.atomic_add(arrived_ptr, 1, sem="acq_rel")
    if before == splits - 1:
        line = tl.arange(0, LINES)
        member, token = line % SHARED, line // SHARED
        is_line = (member < NUM_HEADS // NUM_GROUPS) & (token < num_queries)
        head = group * (NUM_HEADS // NUM_GROUPS) + member
        place = (first_query + token).to(tl.int64) * NUM_HEADS + head
        _merge(
            *(partial_ptr, weight_ptr, sinks_ptr, out_ptr, place, head, is_line, splits, used),
            *(SIZE, HAS_SINKS, LINES, AT_ONCE, BLOCK),
        )
        tl.store(arrived_ptr, 0)


@triton.jit(do_not_specialize=["splits"])
def _merge_row(
    partial_ptr,
    weight_ptr,
    sinks_ptr,
    out_ptr,
    splits,
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    head = tl.program_id(1) + tl.arange(0, 1)
    place = tl.program_id(0).to(tl.int64) * NUM_HEADS + head
    _merge(
        *(partial_ptr, weight_ptr, sinks_ptr, out_ptr, place, head, head >= 0, splits, splits),
        *(SIZE, HAS_SINKS, 1, AT_ONCE, BLOCK),
    )


@triton.jit
def _merge(
    partial_ptr,
    weight_ptr,
    sinks_ptr,
    out_ptr,
    place,
    head,
    is_line,
    splits,
    used,
    SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    LINES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some rows, split after split: no layout of lanes changes a bit, nor does an empty split."""
    entry = tl.arange(0, BLOCK)
    highest = tl.full([LINES], -float("inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    mixed = tl.zeros([LINES, BLOCK], tl.float32)
    for first in range(0, used, AT_ONCE):
        for each in tl.static_range(AT_ONCE):
            split = tl.full([LINES], first + each, tl.int32)
            exists = is_line & (split < used)
            at = place * splits + split
            # Of other programs of the same launch, so past the cache of this one's multiprocessor.
            part = tl.load(
                partial_ptr + at[:, None] * SIZE + entry[None, :],
                mask=exists[:, None] & (entry < SIZE)[None, :],
                other=0.0,
                cache_modifier=".cg",
            )
            logarithm = tl.load(
                weight_ptr + at, mask=exists, other=-float("inf"), cache_modifier=".cg"
            )
            new = tl.maximum(highest, logarithm)
            reference = tl.where(new == -float("inf"), 0.0, new)
            kept = tl.exp2(highest - reference)
            weight = tl.exp2(logarithm - reference)
            # Written out: left to a compiler, the two kernels might round in other places.
            total = tl.fma(total, kept, weight)
            part = tl.where((weight > 0)[:, None], part, 0.0)
            mixed = tl.fma(
                part,
                tl.broadcast_to(weight[:, None], part.shape),
                mixed * kept[:, None],
            )
            highest = new
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head, mask=is_line, other=0.0).to(tl.float32)
        total += tl.exp2(sink * 1.4426950408889634 - highest)
    mixed = mixed / total[:, None]
    out_ptr += place[:, None] * SIZE + entry[None, :]
    inside = is_line[:, None] & (entry < SIZE)[None, :]
    tl.store(out_ptr, mixed.to(out_ptr.dtype.element_ty), mask=inside)
