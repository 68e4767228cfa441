"""Norm, rotation and store of heads in Triton: one program for some heads of a token."""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.floats8.triton import eighths
from cutaway.kernels.heads.plain import HeadNorm
from cutaway.kernels.triton_launches import await_last, early, start_next

_MANY_TOKENS = 1024
_LARGEST = {torch.int8: 127, torch.float8_e4m3fn: 448}  # as store.plain has them


def turn_and_store(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    slots: Tensor,
    *,
    query_norm: HeadNorm | None = None,
    key_norm: HeadNorm | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """See plain.turn_and_store; angles are taken in the dtype in which they come."""
    heads = heads.contiguous()
    num_tokens, num_all, size = heads.shape
    num_groups = key_pages.shape[2]
    num_heads = num_all - 2 * num_groups
    query = torch.empty(num_tokens, num_heads, size, dtype=heads.dtype, device=heads.device)
    if num_tokens:
        norms = (query_norm, key_norm)
        # Of a program, and its warps: on an H200 a third of the time of one head with one warp.
        together, warps = (32, 4) if num_tokens >= _MANY_TOKENS else (4, 1)
        _turn_and_store[(num_tokens, triton.cdiv(num_all, together))](
            *(heads, cos.contiguous(), sin.contiguous(), key_pages, value_pages, slots),
            key_pages if key_scales is None else key_scales,
            value_pages if value_scales is None else value_scales,
            *(heads if norm is None else norm.weight for norm in norms),
            *(query, *(0.0 if norm is None else norm.epsilon for norm in norms)),
            NUM_HEADS=num_heads,
            NUM_GROUPS=num_groups,
            SIZE=size,
            HALF=cos.shape[-1],
            QUERY_NORM=_kind(query_norm),
            KEY_NORM=_kind(key_norm),
            LIMIT=0 if key_scales is None else _LARGEST[key_pages.dtype],
            HEADS=together,
            BLOCK=triton.next_power_of_2(size),
            **early(heads),
            num_warps=warps,
        )
    return query


def _kind(norm: HeadNorm | None) -> int:
    return 0 if norm is None else ("rounded", "offset", "wide").index(norm.kind) + 1


@triton.jit
def _normed(x, partner, weight, beside, epsilon, SIZE: tl.constexpr, KIND: tl.constexpr):
    """Heads and their partners, both normed; x has zeros outside. [HEADS, BLOCK] each."""
    factor = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / SIZE + epsilon)
    dtype = weight.dtype
    weight, beside = weight.to(tl.float32), beside.to(tl.float32)
    x, partner = x * factor[:, None], partner * factor[:, None]
    if KIND == 1:
        x = (x.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
        partner = (partner.to(dtype).to(tl.float32) * beside).to(dtype).to(tl.float32)
    else:
        if KIND == 2:
            weight, beside = 1.0 + weight, 1.0 + beside
        x = (x * weight).to(dtype).to(tl.float32)
        partner = (partner * beside).to(dtype).to(tl.float32)
    return x, partner


@triton.jit
def _norm_some(
    x,
    partner,
    chosen,
    weight_ptr,
    epsilon,
    place,
    other,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
):
    """The same for the chosen heads [HEADS]; the others stay."""
    if KIND:
        inside = place < SIZE
        weight = tl.load(weight_ptr + place, mask=inside, other=0.0)[None, :]
        beside = tl.load(weight_ptr + other, mask=inside, other=0.0)[None, :]
        normed, turned = _normed(x, partner, weight, beside, epsilon, SIZE, KIND)
        x = tl.where(chosen[:, None], normed, x)
        partner = tl.where(chosen[:, None], turned, partner)
    return x, partner


@triton.jit
def _turn_and_store(
    heads_ptr,
    cos_ptr,
    sin_ptr,
    key_ptr,
    value_ptr,
    slots_ptr,
    key_scale_ptr,
    value_scale_ptr,
    query_weight_ptr,
    key_weight_ptr,
    query_ptr,
    query_epsilon,
    key_epsilon,
    NUM_HEADS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    QUERY_NORM: tl.constexpr,
    KEY_NORM: tl.constexpr,
    LIMIT: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    ALL: tl.constexpr = NUM_HEADS + 2 * NUM_GROUPS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    place = tl.arange(0, BLOCK)
    inside = (head < ALL)[:, None] & (place < SIZE)[None, :]
    source = heads_ptr + ((token * ALL + head) * SIZE)[:, None]
    stored = tl.load(source + place[None, :], mask=inside, other=0.0)
    # The pairs are (i, i + HALF); what lies past both halves passes unchanged.
    turns = place < 2 * HALF
    other = tl.where(turns, tl.where(place < HALF, place + HALF, place - HALF), place)
    x = stored.to(tl.float32)
    partner = tl.load(source + other[None, :], mask=inside, other=0.0).to(tl.float32)
    is_query = head < NUM_HEADS
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_GROUPS)
    is_value = (head >= NUM_HEADS + NUM_GROUPS) & (head < ALL)
    x, partner = _norm_some(
        x, partner, is_query, query_weight_ptr, query_epsilon, place, other, SIZE, QUERY_NORM
    )
    x, partner = _norm_some(
        x, partner, is_key, key_weight_ptr, key_epsilon, place, other, SIZE, KEY_NORM
    )
    angle = token * HALF + tl.where(place < HALF, place, place - HALF)
    cos = tl.load(cos_ptr + angle, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=turns, other=0.0).to(tl.float32)
    sin = tl.where(place < HALF, -sin, sin)
    turned = (x * cos[None, :] + partner * sin[None, :]).to(stored.dtype)
    slot = tl.load(slots_ptr + token) * NUM_GROUPS
    query = query_ptr + ((token * NUM_HEADS + head) * SIZE)[:, None] + place[None, :]
    tl.store(query, turned, mask=inside & is_query[:, None])
    key = slot + head - NUM_HEADS
    value = key - NUM_GROUPS
    _store(turned, key_ptr, key_scale_ptr, key, place, inside, is_key, SIZE, LIMIT)
    _store(stored, value_ptr, value_scale_ptr, value, place, inside, is_value, SIZE, LIMIT)


@triton.jit
def _store(
    heads,
    pages_ptr,
    scale_ptr,
    row,
    place,
    inside,
    chosen,
    SIZE: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """Put the chosen heads [HEADS, BLOCK] in rows of the pages [HEADS], in 8 bits if LIMIT is."""
    target = pages_ptr + (row * SIZE)[:, None] + place[None, :]
    if LIMIT:
        numbers, scale = eighths(tl.where(inside, heads.to(tl.float32), 0.0), LIMIT)
        if LIMIT == 127:
            numbers = (numbers + 12582912.0) - 12582912.0  # to the next integer, halves to even
        tl.store(target, numbers.to(pages_ptr.dtype.element_ty), mask=inside & chosen[:, None])
        tl.store(scale_ptr + row, scale, mask=chosen)
    else:
        tl.store(target, heads, mask=inside & chosen[:, None])
