"""Heads turned by position where the turn can be learned through, in Triton.

One pass takes queries, keys and values apart and turns the first two, one puts their gradients
together and turns them back: in float32, rounded once.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from typing import Any, cast

import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_TOKENS = 4  # of a program


def turn(
    whole: Tensor, cos: Tensor, sin: Tensor, *, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys as rotary.rotate gives them, and values.

    Shapes: whole [T, H + 2G, C], cos, sin [T, C/2] -> [T, H, C], [T, G, C], [T, G, C].
    """
    found = _TurnedApart.apply(whole, cos, sin, num_groups)
    return cast("tuple[Tensor, Tensor, Tensor]", found)


class _TurnedApart(Function):
    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, cos: Tensor, sin: Tensor, num_groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin, whole = cos.contiguous(), sin.contiguous(), whole.contiguous()
        ctx.save_for_backward(cos, sin)
        num_tokens, num_heads, size = whole.shape
        counts = (num_heads - 2 * num_groups, num_groups, num_groups)
        parts = [whole.new_empty((num_tokens, count, size)) for count in counts]
        _launch(whole, parts, cos, sin, is_back=False)
        return parts[0], parts[1], parts[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        parts = [each.contiguous() for each in grads]
        num_tokens, _, size = parts[0].shape
        num_heads = sum(each.shape[1] for each in parts)
        whole = parts[0].new_empty((num_tokens, num_heads, size))
        _launch(whole, parts, cos, sin, is_back=True)
        return whole, None, None, None


def _launch(whole: Tensor, parts: list[Tensor], cos: Tensor, sin: Tensor, *, is_back: bool) -> None:
    num_tokens, num_heads, size = whole.shape
    if not num_tokens:
        return
    _turn_heads[(triton.cdiv(num_tokens, _TOKENS),)](
        *(whole, *parts, cos, sin, num_tokens),
        HEADS=parts[0].shape[1],
        GROUPS=parts[1].shape[1],
        HALF=size // 2,
        TOKENS=_TOKENS,
        ROWS=triton.next_power_of_2(num_heads),
        BLOCK=triton.next_power_of_2(size // 2),
        IS_BACK=is_back,
        num_warps=4,
    )


@triton.jit
def _turn_heads(
    whole_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    cos_ptr,
    sin_ptr,
    num_tokens,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_BACK: tl.constexpr,
):
    """Some tokens' heads, apart or back together; entries i and i + HALF are a pair."""
    row = tl.arange(0, TOKENS * ROWS)[:, None]
    token = (tl.program_id(0) * TOKENS + row // ROWS).to(tl.int64)
    head = row % ROWS
    pair = tl.arange(0, BLOCK)[None, :]
    inside = (token < num_tokens) & (pair < HALF)
    is_query = inside & (head < HEADS)
    is_key = inside & (head >= HEADS) & (head < HEADS + GROUPS)
    is_value = inside & (head >= HEADS + GROUPS) & (head < HEADS + 2 * GROUPS)
    turns = is_query | is_key
    cos = tl.load(cos_ptr + token * HALF + pair, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HALF + pair, mask=turns, other=0.0).to(tl.float32)
    at = (token * (HEADS + 2 * GROUPS) + head) * (2 * HALF) + pair
    at_query = (token * HEADS + head) * (2 * HALF) + pair
    at_key = (token * GROUPS + head - HEADS) * (2 * HALF) + pair
    at_value = at_key - GROUPS * (2 * HALF)
    if IS_BACK:
        first = tl.load(query_ptr + at_query, mask=is_query, other=0.0).to(tl.float32)
        first += tl.load(key_ptr + at_key, mask=is_key, other=0.0).to(tl.float32)
        first += tl.load(value_ptr + at_value, mask=is_value, other=0.0).to(tl.float32)
        second = tl.load(query_ptr + at_query + HALF, mask=is_query, other=0.0).to(tl.float32)
        second += tl.load(key_ptr + at_key + HALF, mask=is_key, other=0.0).to(tl.float32)
        second += tl.load(value_ptr + at_value + HALF, mask=is_value, other=0.0).to(tl.float32)
        sin = -sin
    else:
        whole = turns | is_value
        first = tl.load(whole_ptr + at, mask=whole, other=0.0).to(tl.float32)
        second = tl.load(whole_ptr + at + HALF, mask=whole, other=0.0).to(tl.float32)
    # A value passes as it is, also where it is no number.
    left = tl.where(turns, first * cos - second * sin, first)
    right = tl.where(turns, second * cos + first * sin, second)
    if IS_BACK:
        tl.store(whole_ptr + at, left, mask=turns | is_value)
        tl.store(whole_ptr + at + HALF, right, mask=turns | is_value)
    else:
        tl.store(query_ptr + at_query, left, mask=is_query)
        tl.store(query_ptr + at_query + HALF, right, mask=is_query)
        tl.store(key_ptr + at_key, left, mask=is_key)
        tl.store(key_ptr + at_key + HALF, right, mask=is_key)
        tl.store(value_ptr + at_value, left, mask=is_value)
        tl.store(value_ptr + at_value + HALF, right, mask=is_value)
