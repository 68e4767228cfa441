"""Sampling in Triton: blocks of a row reduced apart, then each row by one program.

All sums are of whole numbers in int64, so the order plays no part.
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

from cutaway.kernels.sample import cuts
from cutaway.kernels.sample.cuts import COLUMNS, kept_weights
from cutaway.kernels.sample.weights import (
    apply_temperature,
    exponential,
    multiply_fraction,
    row_peak,
    whole,
    whole_weights,
)
from cutaway.kernels.triton_launches import await_last, early, start_next

_BLOCK = 4096


def sample(logits: Tensor, choices: Tensor, *, has_top_k: bool, has_top_p: bool) -> Tensor:
    """See kernels.sample.sample."""
    num_rows, size = logits.shape
    blocks = triton.cdiv(size, _BLOCK)
    shape = (num_rows, blocks)

    def room(dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    peaks, places, checksums = room(torch.float32), room(torch.int32), room(torch.int64)
    totals, weights = room(torch.int64), room(torch.int64)
    out = torch.empty(num_rows, 7, dtype=torch.float64, device=logits.device)
    settings = {"BLOCK": _BLOCK, "num_warps": 8}
    launched = early(logits)
    _look[shape](logits, peaks, places, checksums, size, logits.stride(0), **settings, **launched)
    asked = {"has_top_k": has_top_k, "has_top_p": has_top_p}
    last = peaks  # of no use
    if has_top_k or has_top_p:
        last = cuts.find(logits, choices, peaks, **asked, settings=settings)
    named = {
        **settings,
        **launched,
        "HAS_CUTS": has_top_k or has_top_p,
        "BLOCKS": triton.next_power_of_2(blocks),
        "enable_fp_fusion": False,
    }
    _weigh[shape](
        *(logits, choices, last, peaks, totals, weights, size, logits.stride(0), blocks), **named
    )
    _choose[(num_rows,)](
        *(logits, choices, last, peaks, places, checksums, totals, weights, out),
        *(size, logits.stride(0), blocks),
        **named,
    )
    return out


@triton.jit
def _drawn_weights(
    logits,
    peak,
    place,
    choice_ptr,
    last_ptr,
    HAS_CUTS: tl.constexpr,
):
    """Whole weights of a row's tokens after every cut; both pointers are the row's."""
    temperature = tl.load(choice_ptr).to(tl.float32)
    floor = tl.load(choice_ptr + 1).to(tl.float32)
    scaled, weight = whole_weights(logits, peak, temperature, floor)
    if HAS_CUTS:
        weight = kept_weights(scaled, weight, place, choice_ptr, last_ptr)
    return weight.to(tl.int64)


@triton.jit
def _scored(logits, peak, choice_ptr):
    """What a row's scores are of: its own logits and their peak, or those after the temperature."""
    temperature = tl.where(tl.load(choice_ptr + 5) > 0, tl.load(choice_ptr).to(tl.float32), 1.0)
    return apply_temperature(logits, peak, temperature)


@triton.jit
def _look(
    logits_ptr,
    peak_ptr,
    place_ptr,
    checksum_ptr,
    size,
    row_stride,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The largest of a block, its first place, and the block's part of the checksum."""
    start_next(EARLY)
    await_last(EARLY)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    logits = tl.load(logits_ptr + row * row_stride + place, mask=inside, other=0.0)
    logits = logits.to(tl.float32)
    factor = ((place.to(tl.int64) * 0x9E3779B1) & 0xFFFFFFFF) | 1
    bits = logits.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    part = tl.sum(tl.where(inside, bits * factor, 0), 0)
    seen = tl.where(inside, logits, -float("inf"))
    has_nan = tl.max((seen != seen).to(tl.int32), 0)
    peak = tl.max(tl.where(seen == seen, seen, -float("inf")), 0)
    first = tl.min(tl.where(seen == peak, place, size), 0)
    target = row * tl.num_programs(1) + block
    tl.store(peak_ptr + target, tl.where(has_nan > 0, float("nan"), peak))
    tl.store(place_ptr + target, first)
    tl.store(checksum_ptr + target, part)


@triton.jit
def _weigh(
    logits_ptr,
    choice_ptr,
    last_ptr,
    peak_ptr,
    total_ptr,
    weight_ptr,
    size,
    row_stride,
    blocks,
    HAS_CUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A block's sum of exponentials, and of weights where something is drawn."""
    start_next(EARLY)
    await_last(EARLY)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak = row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    logits = tl.load(logits_ptr + row * row_stride + place, mask=inside, other=0.0)
    logits = logits.to(tl.float32)
    choice_ptr += row * COLUMNS
    scored, top = _scored(logits, peak, choice_ptr)
    total = whole(exponential(scored, top) * 17179869184.0).to(tl.int64)
    tl.store(total_ptr + row * blocks + block, tl.sum(tl.where(inside, total, 0), 0))
    if tl.load(choice_ptr + 2) >= 0:
        last_ptr += row * 4
        weight = _drawn_weights(logits, peak, place, choice_ptr, last_ptr, HAS_CUTS)
        tl.store(weight_ptr + row * blocks + block, tl.sum(tl.where(inside, weight, 0), 0))


@triton.jit
def _choose(
    logits_ptr,
    choice_ptr,
    last_ptr,
    peak_ptr,
    place_ptr,
    checksum_ptr,
    total_ptr,
    weight_ptr,
    out_ptr,
    size,
    row_stride,
    blocks,
    HAS_CUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The token of a row, and its numbers."""
    start_next(EARLY)
    await_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    peak = row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
    block = tl.arange(0, BLOCKS)
    exists = block < blocks
    first = row * blocks
    places = tl.load(place_ptr + first + block, mask=exists, other=0)
    peaks = tl.load(peak_ptr + first + block, mask=exists, other=-float("inf"))
    token = tl.min(tl.where(exists & (peaks == peak), places, size), 0).to(tl.int64)
    left = peak
    choice_ptr += row * COLUMNS
    u = tl.load(choice_ptr + 2)
    if u >= 0:
        last_ptr += row * 4
        weights = tl.load(weight_ptr + first + block, mask=exists, other=0)
        ends = tl.cumsum(weights, 0)
        total = tl.sum(weights, 0)
        target = multiply_fraction(total, u.to(tl.int64))
        chosen = tl.min(tl.where(exists & (ends > target), block, blocks - 1), 0)
        before = tl.sum(tl.where(block < chosen, weights, 0), 0)
        place = chosen * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        logits = tl.load(logits_ptr + row * row_stride + place, mask=inside, other=0.0)
        logits = logits.to(tl.float32)
        weight = _drawn_weights(logits, peak, place, choice_ptr, last_ptr, HAS_CUTS)
        running = before + tl.cumsum(tl.where(inside, weight, 0), 0)
        token = tl.min(tl.where(running > target, place, size), 0).to(tl.int64)
        left = tl.where(tl.load(choice_ptr).to(tl.float32) != 1.0, peak - peak, peak)
    token = tl.minimum(token, size - 1)
    # As a vector of equals: a division of scalars is another instruction.
    same = token + tl.zeros([BLOCKS], tl.int64)
    own = tl.load(logits_ptr + row * row_stride + same).to(tl.float32)
    scored, top = _scored(own, peak, choice_ptr)
    logit = tl.max(scored, 0)
    total = tl.sum(tl.load(total_ptr + first + block, mask=exists, other=0), 0)
    checksum = tl.sum(tl.load(checksum_ptr + first + block, mask=exists, other=0), 0)
    out_ptr += row * 7
    tl.store(out_ptr, token.to(tl.float64))
    tl.store(out_ptr + 1, left.to(tl.float64))
    tl.store(out_ptr + 2, logit.to(tl.float64))
    tl.store(out_ptr + 3, top.to(tl.float64))
    tl.store(out_ptr + 4, total.to(tl.float64))
    tl.store(out_ptr + 5, (checksum & 0xFFFFFFFF).to(tl.float64))
    tl.store(out_ptr + 6, ((checksum >> 32) & 0xFFFFFFFF).to(tl.float64))
