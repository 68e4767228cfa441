"""Sampling in Triton: blocks of a row reduced apart, then each row by one program.

All sums are of whole numbers in int64, so the order plays no part. The exponential is that of
sampling/integer_weights.py, each operation rounded alone: launches switch fused multiply-add off.
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

_BLOCK = 4096


def sample(logits: Tensor, choices: Tensor) -> Tensor:
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
    _look[shape](logits, peaks, places, checksums, size, logits.stride(0), **settings)
    width = triton.next_power_of_2(blocks)
    _weigh[shape](
        *(logits, choices, peaks, totals, weights, size, logits.stride(0), blocks),
        **settings,
        BLOCKS=width,
        enable_fp_fusion=False,
    )
    _choose[(num_rows,)](
        *(logits, choices, peaks, places, checksums, totals, weights, out),
        *(size, logits.stride(0), blocks),
        **settings,
        BLOCKS=width,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def _whole(x):
    """The nearest whole number of 0 <= x, half to even; from 2^23 up all floats are whole."""
    return tl.where(x < 8388608.0, (x + 8388608.0) - 8388608.0, x)


@triton.jit
def _exponential(logits, peak):
    """e^(logits - peak), as sampling/integer_weights.py has it."""
    exponent = tl.maximum((logits - peak) * 1.44269502162933349609375, -64.0)
    # Adding 1.5 * 2^23 leaves no bits below one: half to even, for either sign.
    whole = (exponent + 12582912.0) - 12582912.0
    rest = exponent - whole
    result = rest * 0.001326472731307149
    result = (result + 0.009671512991189957) * rest
    result = (result + 0.05550733581185341) * rest
    result = (result + 0.24022242426872253) * rest
    result = (result + 0.6931470036506653) * rest
    result = result + 1.0
    bits = result.to(tl.int32, bitcast=True) + (whole.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _weights(logits, peak, temperature, floor):
    """Whole weights in [0, 2^30] after temperature and min_p, as int64."""
    scaled = logits
    top = peak
    if temperature != 1.0:
        scaled = tl.div_rn(logits - peak, temperature + tl.zeros_like(logits))
        top = peak - peak
    weight = _whole(_exponential(scaled, top) * 1073741824.0)
    return tl.where(weight >= floor, weight, 0.0).to(tl.int64)


@triton.jit
def _row_peak(peak_ptr, blocks, BLOCKS: tl.constexpr):
    """The largest logit of a row; NaN if one of them is."""
    block = tl.arange(0, BLOCKS)
    peaks = tl.load(peak_ptr + block, mask=block < blocks, other=-float("inf"))
    peak = tl.max(peaks, 0)
    return tl.where(tl.max((peaks != peaks).to(tl.int32), 0) > 0, float("nan"), peak)


@triton.jit
def _look(logits_ptr, peak_ptr, place_ptr, checksum_ptr, size, row_stride, BLOCK: tl.constexpr):
    """The largest of a block, its first place, and the block's part of the checksum."""
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
    peak_ptr,
    total_ptr,
    weight_ptr,
    size,
    row_stride,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A block's sum of exponentials, and of weights where something is drawn."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak = _row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    logits = tl.load(logits_ptr + row * row_stride + place, mask=inside, other=0.0)
    logits = logits.to(tl.float32)
    total = _whole(_exponential(logits, peak) * 17179869184.0).to(tl.int64)
    tl.store(total_ptr + row * blocks + block, tl.sum(tl.where(inside, total, 0), 0))
    if tl.load(choice_ptr + row * 3 + 2) >= 0:
        temperature = tl.load(choice_ptr + row * 3).to(tl.float32)
        floor = tl.load(choice_ptr + row * 3 + 1).to(tl.float32)
        weight = _weights(logits, peak, temperature, floor)
        tl.store(weight_ptr + row * blocks + block, tl.sum(tl.where(inside, weight, 0), 0))


@triton.jit
def _choose(
    logits_ptr,
    choice_ptr,
    peak_ptr,
    place_ptr,
    checksum_ptr,
    total_ptr,
    weight_ptr,
    out_ptr,
    size,
    row_stride,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The token of a row, and its numbers."""
    row = tl.program_id(0).to(tl.int64)
    peak = _row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
    block = tl.arange(0, BLOCKS)
    exists = block < blocks
    first = row * blocks
    places = tl.load(place_ptr + first + block, mask=exists, other=0)
    peaks = tl.load(peak_ptr + first + block, mask=exists, other=-float("inf"))
    token = tl.min(tl.where(exists & (peaks == peak), places, size), 0).to(tl.int64)
    left = peak
    u = tl.load(choice_ptr + row * 3 + 2)
    if u >= 0:
        temperature = tl.load(choice_ptr + row * 3).to(tl.float32)
        floor = tl.load(choice_ptr + row * 3 + 1).to(tl.float32)
        weights = tl.load(weight_ptr + first + block, mask=exists, other=0)
        ends = tl.cumsum(weights, 0)
        total = tl.sum(weights, 0)
        fraction = u.to(tl.int64)
        # floor(total * fraction / 2^32) in pieces below 2^53; see sampling/draw.py.
        high, low = total >> 32, total & 0xFFFFFFFF
        upper, lower = fraction >> 16, fraction & 0xFFFF
        target = high * fraction + ((low * upper + ((low * lower) >> 16)) >> 16)
        chosen = tl.min(tl.where(exists & (ends > target), block, blocks - 1), 0)
        before = tl.sum(tl.where(block < chosen, weights, 0), 0)
        place = chosen * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        logits = tl.load(logits_ptr + row * row_stride + place, mask=inside, other=0.0)
        weight = _weights(logits.to(tl.float32), peak, temperature, floor)
        running = before + tl.cumsum(tl.where(inside, weight, 0), 0)
        token = tl.min(tl.where(running > target, place, size), 0).to(tl.int64)
        left = tl.where(temperature != 1.0, peak - peak, peak)
    token = tl.minimum(token, size - 1)
    logit = tl.load(logits_ptr + row * row_stride + token).to(tl.float32)
    total = tl.sum(tl.load(total_ptr + first + block, mask=exists, other=0), 0)
    checksum = tl.sum(tl.load(checksum_ptr + first + block, mask=exists, other=0), 0)
    out_ptr += row * 7
    tl.store(out_ptr, token.to(tl.float64))
    tl.store(out_ptr + 1, left.to(tl.float64))
    tl.store(out_ptr + 2, logit.to(tl.float64))
    tl.store(out_ptr + 3, peak.to(tl.float64))
    tl.store(out_ptr + 4, total.to(tl.float64))
    tl.store(out_ptr + 5, (checksum & 0xFFFFFFFF).to(tl.float64))
    tl.store(out_ptr + 6, ((checksum >> 32) & 0xFFFFFFFF).to(tl.float64))
