"""Causal attention within sequences side by side, forward and back, in Triton.

For training in 16 bits. No score is kept: what is saved beside the result is one number a row, and
scores come again for gradients (FlashAttention-2, arXiv:2307.08691). Of gradients each number is
summed by one program in one order, so its bits repeat, and a sequence's are the same in any
company. Heads that share keys read them where they lie. Over sequences of one length, from Hopper
on, cuDNN goes forward, whose bits repeat too, and our kernels go back.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_LOG2_E = 1.4426950408889634
_SHORTEST_FOR_CUDNN = 512  # tokens
_NONE = tl.constexpr(-1.0e30)  # a score that counts for nothing, and can be subtracted from itself


class Tiles(NamedTuple):
    """How a kernel cuts its work. outer: rows or keys that a program owns; inner: of a turn."""

    outer: int
    inner: int
    num_warps: int
    num_stages: int


class Made(NamedTuple):
    """What a forward made. logsums: log2 of each row's sum of powers of 2 [H, T] float32."""

    mixed: Tensor
    logsums: Tensor
    starts: Tensor


# By whether a head has more than 64 entries. Measured on an H200 (bench/train_attention.py).
FORWARD = (Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 3))
QUERIES = (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2))
KEYS = (Tiles(64, 128, 4, 2), Tiles(64, 64, 4, 2))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    width: int | None = None,
) -> Made:
    """Each token over those of its sequence up to itself, or over the last width of them.

    Shapes: query [T, H, C], key and value [T, G, C] -> [T, H, C].
    """
    starts = _starts(lengths, query.device)
    if _is_for_cudnn(query, lengths, width):
        return Made(*_by_cudnn(query, key, value, len(lengths), scale), starts)
    query, key, value = (_in_rows(each) for each in (query, key, value))
    mixed = query.new_empty(query.shape)
    logsums = torch.empty(query.shape[1], query.shape[0], dtype=torch.float32, device=query.device)
    if query.numel():
        tiles = FORWARD[query.shape[-1] > 64]
        by_block = _copies_blocks(key, value)
        streamed = (_source(each, tiles, by_block) for each in (key, value))
        _attend[(triton.cdiv(max(lengths), tiles.outer), query.shape[1], len(lengths))](
            *(query, *streamed, mixed, logsums, starts, len(query), scale * _LOG2_E),
            *(*query.stride()[:2], *key.stride()[:2], *value.stride()[:2]),
            **_constants(query, key, tiles, width, by_block),
        )
    return Made(mixed, logsums, starts)


def gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    made: Made,
    pull: Tensor,
    scale: float,
    width: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of query, key and value.

    made: what attend gave for them.   pull: the gradient of what it mixed [T, H, C].
    """
    query, key, value = (_in_rows(each) for each in (query, key, value))
    pull = pull.contiguous()
    of_query, of_key, of_value = (each.new_empty(each.shape) for each in (query, key, value))
    if not query.numel():
        return of_query, of_key, of_value
    strides = (*query.stride()[:2], *key.stride()[:2], *value.stride()[:2])
    weighed = torch.empty_like(made.logsums)
    is_large = query.shape[-1] > 64
    tiles, by_block = QUERIES[is_large], _copies_blocks(key, value)
    streamed = (_source(each, tiles, by_block) for each in (key, value))
    _pull_queries[(triton.cdiv(max(lengths), tiles.outer), query.shape[1], len(lengths))](
        *(query, *streamed, made.mixed, pull, made.logsums, weighed, of_query),
        *(made.starts, len(query), scale, *strides),
        **_constants(query, key, tiles, width, by_block),
    )
    tiles, by_block = KEYS[is_large], _copies_blocks(query, pull)
    streamed = (_source(each, tiles, by_block) for each in (query, pull))
    _pull_keys[(triton.cdiv(max(lengths), tiles.outer), key.shape[1], len(lengths))](
        *(next(streamed), key, value, next(streamed), made.logsums, weighed, of_key, of_value),
        *(made.starts, len(query), scale, *strides),
        **_constants(query, key, tiles, width, by_block),
    )
    return of_query, of_key, of_value


def _is_for_cudnn(query: Tensor, lengths: Sequence[int], width: int | None) -> bool:
    """Whether cuDNN's forward takes it: 0.77 of our time, and bits that repeat; its back's do not.

    torch chooses it for no deterministic operation, forward or back.
    """
    return (
        len(set(lengths)) == 1
        and lengths[0] >= _SHORTEST_FOR_CUDNN
        and (width is None or width >= lengths[0])
        and query.shape[-1] in (64, 128)
        and _has_copier(query.device)
        and torch.backends.cudnn.is_available()
    )


def _by_cudnn(
    query: Tensor, key: Tensor, value: Tensor, num_sequences: int, scale: float
) -> tuple[Tensor, Tensor]:
    """What Made has, of sequences of one length."""
    heads = (each.unflatten(0, (num_sequences, -1)).transpose(1, 2) for each in (query, key, value))
    mixed_BHTC, logsums_BHT1, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *heads, None, True, 0.0, True, False, scale=scale
    )
    mixed = mixed_BHTC.transpose(1, 2).flatten(0, 1).contiguous()
    logsums = logsums_BHT1.squeeze(-1).transpose(0, 1).flatten(1) * _LOG2_E
    return mixed, logsums


def _in_rows(heads: Tensor) -> Tensor:
    return heads if heads.stride(-1) == 1 else heads.contiguous()


def _copies_blocks(*heads: Tensor) -> bool:
    """Whether the card copies tiles of these by itself, from Hopper on, as it asks for them."""
    return all(
        _has_copier(each.device)
        and each.shape[-1] in (16, 32, 64, 128)
        and each.stride(1) == each.shape[-1]
        and each.stride(0) % 8 == 0
        and each.data_ptr() % 16 == 0
        for each in heads
    )


@cache
def _has_copier(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _source(heads: Tensor, tiles: Tiles, by_block: bool) -> Tensor | TensorDescriptor:
    """What a kernel reads tiles of so many rows of a head from."""
    if not by_block:
        return heads
    num_rows, num_heads, size = heads.shape
    shape, strides = [num_rows, num_heads * size], [heads.stride(0), 1]
    return TensorDescriptor(heads, shape, strides, [tiles.inner, size])


def _starts(lengths: Sequence[int], device: torch.device) -> Tensor:
    """First token of each sequence, and their number; of equal lengths without the host."""
    if len(set(lengths)) == 1:
        total = lengths[0] * len(lengths)
        return torch.arange(0, total + 1, lengths[0], dtype=torch.int32, device=device)
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _constants(
    query: Tensor, key: Tensor, tiles: Tiles, width: int | None, by_block: bool
) -> dict[str, Any]:
    size = query.shape[-1]
    return {
        "SIZE": size,
        "BLOCK": max(16, triton.next_power_of_2(size)),
        "SHARED": query.shape[1] // key.shape[1],
        "WIDTH": width or 0,
        "BY_BLOCK": by_block,
        "OUTER": tiles.outer,
        "INNER": tiles.inner,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }


@triton.jit
def _tile(base, token, length, stride, IS_EDGE: tl.constexpr, SIZE: tl.constexpr, B: tl.constexpr):
    """Rows of a head, 0 where there is none. token: within the sequence, whose first is at base."""
    entry = tl.arange(0, B)
    at = base + token.to(tl.int64)[:, None] * stride + entry[None, :]
    if IS_EDGE:
        return tl.load(at, mask=(token < length)[:, None] & (entry < SIZE)[None, :], other=0.0)
    if B != SIZE:
        return tl.load(at, mask=(entry < SIZE)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def _streamed(
    source, start, head, first, length, stride, head_stride,
    BY_BLOCK: tl.constexpr, IS_EDGE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    INNER: tl.constexpr,
):  # fmt: skip
    """Rows of a head that a turn takes. Copied by the card, those behind the last are others'."""
    if BY_BLOCK:
        tile = source.load([start + first, head * SIZE])
    else:
        base = source + start.to(tl.int64) * stride + head * head_stride
        token = first + tl.arange(0, INNER)
        tile = _tile(base, token, length, stride, IS_EDGE, SIZE, BLOCK)
    return tile


@triton.jit
def _sees(row, key, WIDTH: tl.constexpr):
    seen = row >= key
    if WIDTH > 0:
        seen = seen & (row - key < WIDTH)
    return seen


@triton.jit
def _first_key(first, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """The first key that any row from first on sees, down to a multiple of a step."""
    if WIDTH > 0:
        return tl.maximum(first - WIDTH + 1, 0) // STEP * STEP
    return 0


@triton.jit
def _take_keys(
    state, query, key, value, row, start, group, first, length, scale,
    key_stride, key_head, value_stride, value_head,
    IS_EDGE: tl.constexpr, IS_MASKED: tl.constexpr, BY_BLOCK: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    highest, total, mixed = state
    token = first + tl.arange(0, INNER)
    key = _streamed(
        key, start, group, first, length, key_stride, key_head, BY_BLOCK, IS_EDGE, SIZE, BLOCK,
        INNER,
    )  # fmt: skip
    score = tl.dot(query, tl.trans(key))
    if IS_MASKED:
        score = tl.where(_sees(row[:, None], token[None, :], WIDTH), score, _NONE)
    highest_now = tl.maximum(highest, tl.max(score, 1) * scale)
    share = tl.exp2(score * scale - highest_now[:, None])
    before = tl.exp2(highest - highest_now)
    value = _streamed(
        value, start, group, first, length, value_stride, value_head, BY_BLOCK, IS_EDGE, SIZE,
        BLOCK, INNER,
    )  # fmt: skip
    mixed = tl.dot(share.to(value.dtype), value, mixed * before[:, None])
    return highest_now, total * before + tl.sum(share, 1), mixed


@triton.jit
def _attend(
    query_ptr, key_ptr, value_ptr, mixed_ptr, logsum_ptr, starts_ptr, num_tokens, scale,
    query_stride, query_head, key_stride, key_head, value_stride, value_head,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr,
    BY_BLOCK: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start = tl.load(starts_ptr + tl.program_id(2))
    length = tl.load(starts_ptr + tl.program_id(2) + 1) - start
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * OUTER  # those with most to do go first
    if first < length:
        row = first + tl.arange(0, OUTER)
        group = head // SHARED
        query_base = query_ptr + start.to(tl.int64) * query_stride + head * query_head
        query = _tile(query_base, row, length, query_stride, True, SIZE, BLOCK)
        highest = tl.full((OUTER,), _NONE, tl.float32)
        total = tl.zeros((OUTER,), tl.float32)
        mixed = tl.zeros((OUTER, BLOCK), tl.float32)
        for at in range(_first_key(first, WIDTH, INNER), first, INNER):
            highest, total, mixed = _take_keys(
                (highest, total, mixed), query, key_ptr, value_ptr, row, start, group, at, length,
                scale, key_stride, key_head, value_stride, value_head,
                False, WIDTH > 0, BY_BLOCK, SIZE, BLOCK, WIDTH, INNER,
            )  # fmt: skip
        for at in range(first, tl.minimum(first + OUTER, length), INNER):
            highest, total, mixed = _take_keys(
                (highest, total, mixed), query, key_ptr, value_ptr, row, start, group, at, length,
                scale, key_stride, key_head, value_stride, value_head,
                True, True, BY_BLOCK, SIZE, BLOCK, WIDTH, INNER,
            )  # fmt: skip
        own = start.to(tl.int64) * (tl.num_programs(1) * SIZE) + head * SIZE
        entry = tl.arange(0, BLOCK)
        at = own + row.to(tl.int64)[:, None] * (tl.num_programs(1) * SIZE) + entry[None, :]
        inside = (row < length)[:, None] & (entry < SIZE)[None, :]
        tl.store(mixed_ptr + at, mixed / total[:, None], mask=inside)
        place = head.to(tl.int64) * num_tokens + start + row
        tl.store(logsum_ptr + place, highest + tl.log2(total), mask=row < length)


@triton.jit
def _pull_query_tile(
    of_query, query, pull, logsum, weighed, key, value, row, start, group, first, length, scale2,
    key_stride, key_head, value_stride, value_head,
    IS_EDGE: tl.constexpr, IS_MASKED: tl.constexpr, BY_BLOCK: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    token = first + tl.arange(0, INNER)
    key = _streamed(
        key, start, group, first, length, key_stride, key_head, BY_BLOCK, IS_EDGE, SIZE, BLOCK,
        INNER,
    )  # fmt: skip
    value = _streamed(
        value, start, group, first, length, value_stride, value_head, BY_BLOCK, IS_EDGE, SIZE,
        BLOCK, INNER,
    )  # fmt: skip
    share = tl.exp2(tl.dot(query, tl.trans(key)) * scale2 - logsum[:, None])
    if IS_MASKED:
        share = tl.where(_sees(row[:, None], token[None, :], WIDTH), share, 0.0)
    of_score = share * (tl.dot(pull, tl.trans(value)) - weighed[:, None])
    return tl.dot(of_score.to(key.dtype), key, of_query)


@triton.jit
def _pull_queries(
    query_ptr, key_ptr, value_ptr, mixed_ptr, pull_ptr, logsum_ptr, weighed_ptr, of_query_ptr,
    starts_ptr, num_tokens, scale,
    query_stride, query_head, key_stride, key_head, value_stride, value_head,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr,
    BY_BLOCK: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, and on the way what _pull_keys needs of each row."""
    head = tl.program_id(1)
    start = tl.load(starts_ptr + tl.program_id(2))
    length = tl.load(starts_ptr + tl.program_id(2) + 1) - start
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * OUTER
    if first < length:
        row = first + tl.arange(0, OUTER)
        inside = row < length
        group = head // SHARED
        query_base = query_ptr + start.to(tl.int64) * query_stride + head * query_head
        width = tl.num_programs(1) * SIZE
        own = start.to(tl.int64) * width + head * SIZE
        query = _tile(query_base, row, length, query_stride, True, SIZE, BLOCK)
        pull = _tile(pull_ptr + own, row, length, width, True, SIZE, BLOCK)
        mixed = _tile(mixed_ptr + own, row, length, width, True, SIZE, BLOCK)
        weighed = tl.sum(pull.to(tl.float32) * mixed.to(tl.float32), 1)
        place = head.to(tl.int64) * num_tokens + start + row
        tl.store(weighed_ptr + place, weighed, mask=inside)
        logsum = tl.load(logsum_ptr + place, mask=inside, other=float("inf"))
        of_query = tl.zeros((OUTER, BLOCK), tl.float32)
        scale2 = scale * 1.4426950408889634
        for at in range(_first_key(first, WIDTH, INNER), first, INNER):
            of_query = _pull_query_tile(
                of_query, query, pull, logsum, weighed, key_ptr, value_ptr, row, start, group, at,
                length, scale2, key_stride, key_head, value_stride, value_head,
                False, WIDTH > 0, BY_BLOCK, SIZE, BLOCK, WIDTH, INNER,
            )  # fmt: skip
        for at in range(first, tl.minimum(first + OUTER, length), INNER):
            of_query = _pull_query_tile(
                of_query, query, pull, logsum, weighed, key_ptr, value_ptr, row, start, group, at,
                length, scale2, key_stride, key_head, value_stride, value_head,
                True, True, BY_BLOCK, SIZE, BLOCK, WIDTH, INNER,
            )  # fmt: skip
        entry = tl.arange(0, BLOCK)
        at = own + row.to(tl.int64)[:, None] * width + entry[None, :]
        mask = inside[:, None] & (entry < SIZE)[None, :]
        tl.store(of_query_ptr + at, of_query * scale, mask=mask)


@triton.jit
def _pull_key_tile(
    of_key, of_value, key, value, query, pull, logsum_base, weighed_base, token, start, head, first,
    length, scale2, query_stride, query_head, pull_stride,
    BY_BLOCK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    INNER: tl.constexpr,
):  # fmt: skip
    row = first + tl.arange(0, INNER)
    inside = row < length
    query = _streamed(
        query, start, head, first, length, query_stride, query_head, BY_BLOCK, True, SIZE, BLOCK,
        INNER,
    )  # fmt: skip
    logsum = tl.load(logsum_base + row, mask=inside, other=float("inf"))
    share = tl.exp2(tl.dot(key, tl.trans(query)) * scale2 - logsum[None, :])
    share = tl.where(_sees(row[None, :], token[:, None], WIDTH), share, 0.0)
    pull = _streamed(
        pull, start, head, first, length, pull_stride, SIZE, BY_BLOCK, True, SIZE, BLOCK, INNER,
    )  # fmt: skip
    weighed = tl.load(weighed_base + row, mask=inside, other=0.0)
    of_score = share * (tl.dot(value, tl.trans(pull)) - weighed[None, :])
    of_value = tl.dot(share.to(pull.dtype), pull, of_value)
    return tl.dot(of_score.to(query.dtype), query, of_key), of_value


@triton.jit
def _pull_keys(
    query_ptr, key_ptr, value_ptr, pull_ptr, logsum_ptr, weighed_ptr, of_key_ptr, of_value_ptr,
    starts_ptr, num_tokens, scale,
    query_stride, query_head, key_stride, key_head, value_stride, value_head,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr,
    BY_BLOCK: tl.constexpr, OUTER: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values: of all heads that share them, one after the other."""
    group = tl.program_id(1)
    start = tl.load(starts_ptr + tl.program_id(2))
    length = tl.load(starts_ptr + tl.program_id(2) + 1) - start
    first = tl.program_id(0) * OUTER
    if first < length:
        token = first + tl.arange(0, OUTER)
        key_base = key_ptr + start.to(tl.int64) * key_stride + group * key_head
        value_base = value_ptr + start.to(tl.int64) * value_stride + group * value_head
        key = _tile(key_base, token, length, key_stride, True, SIZE, BLOCK)
        value = _tile(value_base, token, length, value_stride, True, SIZE, BLOCK)
        of_key = tl.zeros((OUTER, BLOCK), tl.float32)
        of_value = tl.zeros((OUTER, BLOCK), tl.float32)
        scale2 = scale * 1.4426950408889634
        width = tl.num_programs(1) * SHARED * SIZE
        end = length
        if WIDTH > 0:
            end = tl.minimum(length, first + OUTER + WIDTH - 1)
        for member in range(SHARED):
            head = group * SHARED + member
            place = head.to(tl.int64) * num_tokens + start
            # Masked to the end: one loop is faster than a second without.
            for at in range(first, end, INNER):
                of_key, of_value = _pull_key_tile(
                    of_key, of_value, key, value, query_ptr, pull_ptr, logsum_ptr + place,
                    weighed_ptr + place, token, start, head, at, length, scale2,
                    query_stride, query_head, width, BY_BLOCK, SIZE, BLOCK, WIDTH, INNER,
                )  # fmt: skip
        entry = tl.arange(0, BLOCK)
        row_width = tl.num_programs(1) * SIZE
        at = start.to(tl.int64) * row_width + group * SIZE + entry[None, :]
        at += token.to(tl.int64)[:, None] * row_width
        mask = (token < length)[:, None] & (entry < SIZE)[None, :]
        tl.store(of_key_ptr + at, of_key * scale, mask=mask)
        tl.store(of_value_ptr + at, of_value, mask=mask)
