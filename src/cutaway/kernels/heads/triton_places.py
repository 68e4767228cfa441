"""Heads put in their places by the product that makes them, for a single token in Triton.

A number of a head turns with one other, so a program multiplies both rows.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.heads.plain import HeadPlaces

PLACES = 2  # beside the gates of gate/triton.py: what a product does with rows that are pairs


def place_arguments(
    places: HeadPlaces | None, num_rows: int, like: Tensor
) -> tuple[list[Tensor], dict[str, Any]]:
    """What place_pairs is given, in its order and by name; like: where nothing is placed."""
    if places is None:
        return [like] * 5, {"NUM_HEADS": 0, "NUM_GROUPS": 0, "HALF": 1}
    groups, size = places.key_pages.shape[2:]
    given = [places.cos.contiguous(), places.sin.contiguous(), places.key_pages, places.value_pages]
    named = {"NUM_HEADS": num_rows // size - 2 * groups, "NUM_GROUPS": groups, "HALF": size // 2}
    return [*given, places.slots], named


@triton.jit
def paired_row(out, side, num_outs, GATE: tl.constexpr, HALF: tl.constexpr):
    """The matrix' row of a result, or by side 1 the one that belongs to it: a gate's, a head's."""
    row = out + side * num_outs
    if GATE == 2:
        row = out + out // HALF * HALF + side * HALF
    return row


@triton.jit
def place_pairs(
    first,
    second,
    pair,
    inside,
    cos_ptr,
    sin_ptr,
    key_ptr,
    value_ptr,
    slots_ptr,
    query_ptr,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Numbers i and i + HALF of a token's heads, turned and put in their places.

    pair: counted through all heads.   Shapes: first, second, pair, inside [N].
    """
    head, place = pair // HALF, pair % HALF
    cos = tl.load(cos_ptr + place, mask=inside, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + place, mask=inside, other=0.0).to(tl.float32)
    x, partner = first.to(tl.float32), second.to(tl.float32)
    turned = (x * cos + partner * -sin).to(first.dtype)
    beside = (partner * cos + x * sin).to(first.dtype)
    query = query_ptr + head * (2 * HALF) + place
    is_query = inside & (head < NUM_HEADS)
    tl.store(query, turned, mask=is_query)
    tl.store(query + HALF, beside, mask=is_query)
    row = tl.load(slots_ptr) * NUM_GROUPS + head - NUM_HEADS
    key = key_ptr + row * (2 * HALF) + place
    is_key = inside & (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_GROUPS)
    tl.store(key, turned, mask=is_key)
    tl.store(key + HALF, beside, mask=is_key)
    value = value_ptr + (row - NUM_GROUPS) * (2 * HALF) + place
    is_value = inside & (head >= NUM_HEADS + NUM_GROUPS)
    tl.store(value, first, mask=is_value)
    tl.store(value + HALF, second, mask=is_value)
