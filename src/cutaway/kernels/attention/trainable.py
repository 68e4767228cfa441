"""Attention within the sequences of a step in fused forms, for training.

Equal to plain.attention to rounding, forward and backward, and no loop over sequences: a native
kernel on a CPU, Triton's on a GPU in 16 bits, else torch's over sequences of like length side by
side. A cap, sinks, float64 and windows that keep first tokens go the plain way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.step import ShapePlan
from cutaway.kernels import dispatch, native
from cutaway.kernels.attention import plain

_LONGEST_NATIVE = 1024  # tokens: 0.3 to 0.7 of torch's time up to there, and 1.1 of it at 2,048
_MOST_IN_TRITON = 128  # entries of a head: tiles of larger ones do not lie in a core's memory
_LEAST_FILL = 0.75  # of a group's rows that are no padding


def trainable_attention(
    query_THC: Tensor,
    key_TGC: Tensor,
    value_TGC: Tensor,
    *,
    plan: ShapePlan,
    softmax_scale: float,
    extent: Extent = FULL,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See plain.attention."""
    # Norms of heads keep float32 where products have fewer bits.
    query_THC, key_TGC = query_THC.to(value_TGC.dtype), key_TGC.to(value_TGC.dtype)
    keeps_first = isinstance(extent, Window) and extent.sinks > 0
    if cap is not None or sinks is not None or keeps_first or query_THC.dtype == torch.float64:
        return plain.attention(
            query_THC,
            key_TGC,
            value_TGC,
            plan=plan,
            softmax_scale=softmax_scale,
            extent=extent,
            cap=cap,
            sinks=sinks,
        )
    width = extent.width if isinstance(extent, Window) else None
    if _takes(query_THC, key_TGC, value_TGC, plan.query_lengths):
        given = (plan.query_lengths, softmax_scale, width)
        return cast(Tensor, _AttentionInTriton.apply(query_THC, key_TGC, value_TGC, *given))
    heads = native.OwnHeads(query_THC, key_TGC, value_TGC)
    longest = max(plan.query_lengths)
    sees_all = longest <= _LONGEST_NATIVE and (width is None or width >= longest)
    if sees_all and native.takes_heads(heads):
        return cast(Tensor, _Native.apply(*heads, plan.query_lengths, softmax_scale))
    return _side_by_side(query_THC, key_TGC, value_TGC, plan.query_lengths, softmax_scale, width)


def _takes(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> bool:
    """Whether the kernels in Triton do; entries of latent attention's keys are more than values'.

    In float32 torch's are no slower, and exact. Over equal lengths cuDNN's are quicker in 16 bits,
    whose bits need not repeat.
    """
    if not torch.are_deterministic_algorithms_enabled() and len(set(lengths)) == 1:
        return False
    size = query.shape[-1]
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if not is_half or size != value.shape[-1] or size > _MOST_IN_TRITON:
        return False
    return dispatch.uses_triton(query, key, value) or dispatch.learns_in_triton(query, key, value)


class _AttentionInTriton(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Sequence[int],
        scale: float,
        width: int | None,
    ) -> Tensor:
        from cutaway.kernels.attention import triton_learned

        made = triton_learned.attend(query, key, value, lengths, scale=scale, width=width)
        ctx.save_for_backward(query, key, value, *made)
        ctx.given = (lengths, scale, width)
        return made.mixed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        from cutaway.kernels.attention import triton_learned

        query, key, value, *rest = ctx.saved_tensors
        lengths, scale, width = ctx.given
        found = triton_learned.gradients(
            *(query, key, value, lengths),
            made=triton_learned.Made(*rest),
            pull=grads[0],
            scale=scale,
            width=width,
        )
        return *found, None, None, None


class _Native(Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float
    ) -> Tensor:
        heads = native.OwnHeads(query, key, value)
        out, sums = native.own_attention(heads, lengths, scale)
        ctx.save_for_backward(*heads, out, sums)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, *made = ctx.saved_tensors
        heads = native.OwnHeads(query, key, value)
        grad = grads[0].contiguous()
        found = native.own_attention_gradients(heads, ctx.lengths, ctx.scale, tuple(made), grad)
        return *found, None, None


def _side_by_side(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    scale: float,
    width: int | None,
) -> Tensor:
    """Groups of sequences as one batch each, padded behind: a causal query never sees the padding.

    Where all are of one length nothing is padded or copied.
    """
    if len(set(lengths)) == 1:
        batch = (len(lengths), lengths[0])
        query, key, value = (each.reshape(*batch, *each.shape[1:]) for each in (query, key, value))
        return _attend(query, key, value, scale, width).flatten(0, 1)
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    starts = list(accumulate(lengths, initial=0))
    places: list[Tensor] = []
    parts: list[Tensor] = []
    for group in _alike(lengths):
        longest = max(lengths[index] for index in group)
        own = torch.tensor([starts[index] for index in group], device=query.device)[:, None]
        counts = torch.tensor([lengths[index] for index in group], device=query.device)[:, None]
        steps = torch.arange(longest, device=query.device)
        rows = own + steps.minimum(counts - 1)  # padding repeats the last token
        is_real = steps < counts
        parts.append(_attend(query[rows], key[rows], value[rows], scale, width)[is_real])
        places.append(rows[is_real])
    return torch.cat(parts)[torch.cat(places).argsort()]


def _attend(
    query_BTHC: Tensor, key_BTHC: Tensor, value_BTHC: Tensor, scale: float, width: int | None
) -> Tensor:
    """Shapes: query [B, T, H, C], key and value [B, T, G, C] -> [B, T, H, C]."""
    query, key, value = (each.transpose(1, 2) for each in (query_BTHC, key_BTHC, value_BTHC))
    length = query.shape[2]
    mask = None
    if width is not None and width < length:
        places = torch.arange(length, device=query.device)
        back = places[:, None] - places
        mask = (back >= 0) & (back < width)
    mixed = functional.scaled_dot_product_attention(
        *(query, key, value),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed.transpose(1, 2)


def _alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of sequences by length, in groups that padding to the longest hardly grows."""
    group: list[int] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        longest = lengths[group[0]] if group else lengths[index]
        if group and total + lengths[index] < _LEAST_FILL * longest * (len(group) + 1):
            yield group
            group, total = [], 0
        group.append(index)
        total += lengths[index]
    yield group
