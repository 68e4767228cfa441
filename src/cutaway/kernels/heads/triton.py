"""Norm, rotation and store of heads in Triton: one program per token and head."""

# pyright: basic
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.heads.plain import HeadNorm


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
) -> Tensor:
    """See plain.turn_and_store; angles are taken in the dtype in which they come."""
    heads = heads.contiguous()
    num_tokens, num_all, size = heads.shape
    num_groups = key_pages.shape[2]
    num_heads = num_all - 2 * num_groups
    query = torch.empty(num_tokens, num_heads, size, dtype=heads.dtype, device=heads.device)
    if num_tokens:
        norms = (query_norm, key_norm)
        _turn_and_store[(num_tokens, num_all)](
            *(heads, cos.contiguous(), sin.contiguous(), key_pages, value_pages, slots),
            *(heads if norm is None else norm.weight for norm in norms),
            *(query, *(0.0 if norm is None else norm.epsilon for norm in norms)),
            NUM_HEADS=num_heads,
            NUM_GROUPS=num_groups,
            SIZE=size,
            HALF=cos.shape[-1],
            QUERY_NORM=_kind(query_norm),
            KEY_NORM=_kind(key_norm),
            BLOCK=triton.next_power_of_2(size),
            num_warps=1,
        )
    return query


def _kind(norm: HeadNorm | None) -> int:
    return 0 if norm is None else ("rounded", "offset", "wide").index(norm.kind) + 1


@triton.jit
def _normed(
    x,
    partner,
    weight_ptr,
    epsilon,
    place,
    other,
    inside,
    SIZE: tl.constexpr,
    KIND: tl.constexpr,
):
    """A head and its partners, both normed; x has zeros outside."""
    factor = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + epsilon)
    weight = tl.load(weight_ptr + place, mask=inside, other=0.0)
    dtype = weight.dtype
    beside = tl.load(weight_ptr + other, mask=inside, other=0.0).to(tl.float32)
    weight = weight.to(tl.float32)
    x, partner = x * factor, partner * factor
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
def _turn_and_store(
    heads_ptr,
    cos_ptr,
    sin_ptr,
    key_ptr,
    value_ptr,
    slots_ptr,
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
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    source = heads_ptr + (token * (NUM_HEADS + 2 * NUM_GROUPS) + head) * SIZE
    stored = tl.load(source + place, mask=inside, other=0.0)
    slot = tl.load(slots_ptr + token) * NUM_GROUPS
    if head >= NUM_HEADS + NUM_GROUPS:
        target = value_ptr + (slot + head - NUM_HEADS - NUM_GROUPS) * SIZE
        tl.store(target + place, stored, mask=inside)
    else:
        # The pairs are (i, i + HALF); what lies past both halves passes unchanged.
        other = tl.where(place < HALF, place + HALF, place - HALF)
        turns = place < 2 * HALF
        other = tl.where(turns, other, place)
        x = stored.to(tl.float32)
        partner = tl.load(source + other, mask=inside, other=0.0).to(tl.float32)
        angle = token * HALF + tl.where(place < HALF, place, place - HALF)
        cos = tl.load(cos_ptr + angle, mask=turns, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + angle, mask=turns, other=0.0).to(tl.float32)
        sin = tl.where(place < HALF, -sin, sin)
        if head < NUM_HEADS:
            if QUERY_NORM:
                x, partner = _normed(
                    x,
                    partner,
                    query_weight_ptr,
                    query_epsilon,
                    place,
                    other,
                    inside,
                    SIZE,
                    QUERY_NORM,
                )
            turned = x * cos + partner * sin
            target = query_ptr + (token * NUM_HEADS + head) * SIZE
            tl.store(target + place, turned.to(stored.dtype), mask=inside)
        else:
            if KEY_NORM:
                x, partner = _normed(
                    x,
                    partner,
                    key_weight_ptr,
                    key_epsilon,
                    place,
                    other,
                    inside,
                    SIZE,
                    KEY_NORM,
                )
            turned = x * cos + partner * sin
            target = key_ptr + (slot + head - NUM_HEADS) * SIZE
            tl.store(target + place, turned.to(stored.dtype), mask=inside)
