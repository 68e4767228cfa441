"""top_k and top_p in Triton without a sort: the last token that stays is found digit by digit.

Tokens have an order, largest first and smaller ids first among equals: of logits for top_k, of
weights for top_p. A cut keeps those down to one of them, which is looked for as a number is read:
each pass adds up what lies in each of sixteen shares of the range that is left, which is one digit
of the last key; then equals of that key are counted. All sums are of whole numbers, so that it
does not matter in which order they are added.
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

from cutaway.kernels.sample.weights import multiply_fraction, row_peak, whole_weights

# Of a row's settings: temperature, floor, u, top_k, rest of top_p, whether scores are the drawn's.
COLUMNS = tl.constexpr(6)
TOP_K, TOP_P = tl.constexpr(0), tl.constexpr(1)
# Digits of four bits. A logit's key has 32 bits; a weight's 28: the bits of a float from 1 to 2^30.
_DIGITS = (8, 7)
_LENGTH_K, _LENGTH_P = tl.constexpr(8), tl.constexpr(7)


def find(
    logits: Tensor,
    choices: Tensor,
    peaks: Tensor,
    *,
    has_top_k: bool,
    has_top_p: bool,
    settings: dict[str, Any],
) -> Tensor:
    """The last token that each cut of each row keeps: its key, and its id [R, 2, 2] int64.

    Shapes: logits [R, V], choices [R, 6] float64, peaks [R, blocks].
    """
    num_rows, size = logits.shape
    blocks = peaks.shape[1]
    sums = torch.zeros(num_rows, sum(_DIGITS), 16, dtype=torch.int64, device=logits.device)
    ties = torch.empty(num_rows, blocks, dtype=torch.int32, device=logits.device)
    last = torch.empty(num_rows, 2, 2, dtype=torch.int64, device=logits.device)
    given = (logits, choices, peaks, sums, ties, last, size, logits.stride(0), blocks)
    settings = {**settings, "BLOCKS": triton.next_power_of_2(blocks), "enable_fp_fusion": False}
    for kind, is_asked in ((0, has_top_k), (1, has_top_p)):
        if not is_asked:
            continue
        named = {**settings, "KIND": kind}
        for digit in range(_DIGITS[kind]):
            _add_shares[num_rows, blocks](*given, digit, **named)
        _count_equals[num_rows, blocks](*given, **named)
        _find_last[(num_rows,)](*given, **named)
    return last


@triton.jit
def _order(scaled):
    """Keys of logits from 0 to 2^32 - 1, ascending as they do; both zeros have one."""
    bits = tl.where(scaled == 0.0, 0.0, scaled).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _stays(key, place, last_ptr, KIND: tl.constexpr):
    """Whether tokens are not behind the last one that a cut keeps; last_ptr: of the row."""
    bound = tl.load(last_ptr + 2 * KIND)
    last = tl.load(last_ptr + 2 * KIND + 1)
    return (key > bound) | ((key == bound) & (place <= last))


@triton.jit
def _weight_key(weight):
    return (weight.to(tl.int32, bitcast=True) - 0x3F800000).to(tl.int64)


@triton.jit
def _cut_weights(scaled, weight, place, choice_ptr, last_ptr):
    """The weights of a row's tokens, 0 where top_k drops them; both pointers are the row's."""
    if tl.load(choice_ptr + 3) > 0:
        weight = tl.where(_stays(_order(scaled), place, last_ptr, TOP_K), weight, 0.0)
    return weight


@triton.jit
def kept_weights(scaled, weight, place, choice_ptr, last_ptr):
    """The same after top_p too."""
    weight = _cut_weights(scaled, weight, place, choice_ptr, last_ptr)
    if tl.load(choice_ptr + 4) >= 0:
        weight = tl.where(_stays(_weight_key(weight), place, last_ptr, TOP_P), weight, 0.0)
    return weight


@triton.jit
def _asks(choice_ptr, KIND: tl.constexpr):
    """Whether a row draws and has the cut."""
    draws = tl.load(choice_ptr + 2) >= 0
    if KIND == 0:
        return draws & (tl.load(choice_ptr + 3) > 0)
    else:
        return draws & (tl.load(choice_ptr + 4) >= 0)


@triton.jit
def _keys(
    logits_ptr,
    choice_ptr,
    last_ptr,
    peak,
    place,
    size,
    KIND: tl.constexpr,
):
    """Keys of a row's tokens, what each of them counts, and whether it does at all."""
    temperature = tl.load(choice_ptr).to(tl.float32)
    floor = tl.load(choice_ptr + 1).to(tl.float32)
    inside = place < size
    logits = tl.load(logits_ptr + place, mask=inside, other=0.0).to(tl.float32)
    scaled, weight = whole_weights(logits, peak, temperature, floor)
    if KIND == 0:
        return _order(scaled), tl.full(place.shape, 1, tl.int32), inside
    else:
        weight = _cut_weights(scaled, weight, place, choice_ptr, last_ptr)
        return _weight_key(weight), weight.to(tl.int64), inside & (weight > 0)


@triton.jit
def _aim(choice_ptr, sums_ptr, KIND: tl.constexpr):
    """What the kept tokens add up to at least: their number, or weights; see TopP in filters.py."""
    if KIND == 0:
        return tl.load(choice_ptr + 3).to(tl.int64)
    else:
        total = tl.sum(tl.load(sums_ptr + tl.arange(0, 16)), 0)
        rest = tl.load(choice_ptr + 4).to(tl.int64)
        return tl.maximum(total - multiply_fraction(total, rest), 1)


@triton.jit
def _read_digits(sums_ptr, aim, count):
    """The first digits of the last key, and what is wanted of the tokens that begin so."""
    share = tl.arange(0, 16)
    digits = aim * 0
    for digit in range(count):
        sums = tl.load(sums_ptr + digit * 16 + share)
        reached = tl.sum(sums, 0) - tl.cumsum(sums, 0) + sums  # by this share and those above
        chosen = tl.max(tl.where(reached >= aim, share, 0), 0)
        aim -= tl.sum(tl.where(share > chosen, sums, 0), 0)
        digits = digits * 16 + chosen
    return digits, aim


@triton.jit(do_not_specialize=["digit"])
def _add_shares(
    logits_ptr,
    choice_ptr,
    peak_ptr,
    sums_ptr,
    ties_ptr,
    last_ptr,
    size,
    row_stride,
    blocks,
    digit,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Of a block's tokens whose key begins as the last one's: what has each next digit."""
    LENGTH: tl.constexpr = _LENGTH_K if KIND == 0 else _LENGTH_P
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    choice_ptr += row * COLUMNS
    if _asks(choice_ptr, KIND):
        sums_ptr += (row * (_LENGTH_K + _LENGTH_P) + KIND * _LENGTH_K) * 16
        peak = row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
        place = block * BLOCK + tl.arange(0, BLOCK)
        key, amount, counts = _keys(
            logits_ptr + row * row_stride,
            choice_ptr,
            last_ptr + row * 4,
            peak,
            place,
            size,
            KIND,
        )
        shift = 4 * (LENGTH - 1 - digit)
        digits, _ = _read_digits(sums_ptr, _aim(choice_ptr, sums_ptr, KIND), digit)
        counts = counts & ((key >> (shift + 4)) == digits)
        if tl.max(counts.to(tl.int32), 0) > 0:
            own = (key >> shift) & 15
            for share in tl.static_range(16):
                amounts = tl.sum(tl.where(counts & (own == share), amount, 0), 0).to(tl.int64)
                if amounts > 0:
                    tl.atomic_add(sums_ptr + digit * 16 + share, amounts, sem="relaxed")


@triton.jit
def _count_equals(
    logits_ptr,
    choice_ptr,
    peak_ptr,
    sums_ptr,
    ties_ptr,
    last_ptr,
    size,
    row_stride,
    blocks,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """How many tokens of a block have the last key."""
    LENGTH: tl.constexpr = _LENGTH_K if KIND == 0 else _LENGTH_P
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    choice_ptr += row * COLUMNS
    if _asks(choice_ptr, KIND):
        sums_ptr += (row * (_LENGTH_K + _LENGTH_P) + KIND * _LENGTH_K) * 16
        peak = row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
        place = block * BLOCK + tl.arange(0, BLOCK)
        key, _, counts = _keys(
            logits_ptr + row * row_stride,
            choice_ptr,
            last_ptr + row * 4,
            peak,
            place,
            size,
            KIND,
        )
        digits, _ = _read_digits(sums_ptr, _aim(choice_ptr, sums_ptr, KIND), LENGTH)
        equals = tl.sum((counts & (key == digits)).to(tl.int32), 0)
        tl.store(ties_ptr + row * blocks + block, equals)


@triton.jit
def _find_last(
    logits_ptr,
    choice_ptr,
    peak_ptr,
    sums_ptr,
    ties_ptr,
    last_ptr,
    size,
    row_stride,
    blocks,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The last key of a row, and the largest id among its equals that stay."""
    LENGTH: tl.constexpr = _LENGTH_K if KIND == 0 else _LENGTH_P
    row = tl.program_id(0).to(tl.int64)
    choice_ptr += row * COLUMNS
    if _asks(choice_ptr, KIND):
        sums_ptr += (row * (_LENGTH_K + _LENGTH_P) + KIND * _LENGTH_K) * 16
        last_ptr += row * 4
        aim = _aim(choice_ptr, sums_ptr, KIND)
        digits, aim = _read_digits(sums_ptr, aim, LENGTH)
        if KIND == 1:
            # Each of the equals weighs what the key says; one stays while less lies before it.
            weight = (digits + 0x3F800000).to(tl.int32).to(tl.float32, bitcast=True)
            each = tl.maximum(weight.to(tl.int64), 1)
            aim = (aim + each - 1) // each
        index = tl.arange(0, BLOCKS)
        ties = tl.load(ties_ptr + row * blocks + index, mask=index < blocks, other=0).to(tl.int64)
        ends = tl.cumsum(ties, 0)
        chosen = tl.min(tl.where((index < blocks) & (ends >= aim), index, blocks - 1), 0)
        before = tl.sum(tl.where(index < chosen, ties, 0), 0)
        place = chosen * BLOCK + tl.arange(0, BLOCK)
        peak = row_peak(peak_ptr + row * blocks, blocks, BLOCKS)
        key, _, counts = _keys(
            logits_ptr + row * row_stride,
            choice_ptr,
            last_ptr,
            peak,
            place,
            size,
            KIND,
        )
        running = before + tl.cumsum((counts & (key == digits)).to(tl.int64), 0)
        last = tl.min(tl.where(running >= aim, place, size), 0)
        tl.store(last_ptr + 2 * KIND, digits)
        tl.store(last_ptr + 2 * KIND + 1, last.to(tl.int64))
