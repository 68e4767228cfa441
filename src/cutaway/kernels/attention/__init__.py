"""Causal attention over a sequence's own tokens or over pages."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from cutaway.core.layout import FULL, Extent
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import naive, plain
from cutaway.kernels.attention.plain import SEGMENT, Scoring, attention
from cutaway.kernels.attention.trainable import trainable_attention
from cutaway.kernels.dispatch import MOST_HEAD_SIZE, uses_triton
from cutaway.kernels.recording import operation

__all__ = [
    "SEGMENT",
    "Scoring",
    "attention",
    "invariant_paged_attention",
    "naive_paged_attention",
    "paged_attention",
    "paged_latent_attention",
    "trainable_attention",
]


def _mixed(query: Tensor, keys: Tensor, values: Tensor, **_: Any) -> Tensor:
    """A result without numbers. Shapes: query [T, H, C], values [..., W] -> [T, H, W]."""
    del keys
    return query.new_empty((*query.shape[:-1], values.shape[-1]))


def _latent_mixed(query: Tensor, latent: Tensor, rotary: Tensor, **_: Any) -> Tensor:
    del rotary
    return query.new_empty((*query.shape[:-1], latent.shape[-1]))


@operation(shape_of=_mixed)
def paged_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    page_table: Tensor,
    context_lengths: Tensor,
    plan: ShapePlan,
    softmax_scale: float,
    query_starts: Tensor | None = None,
    extent: Extent = FULL,
    cap: float | None = None,
    sinks: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    is_invariant: bool = False,
) -> Tensor:
    """See plain.paged_attention.

    query_starts: first query of each sequence, and their number [B + 1]; None makes it of plan.
    is_invariant: whether a row has the same bits in any company and cut on a GPU too.
    """
    if uses_triton(query) and query.shape[-1] <= MOST_HEAD_SIZE and key_pages.stride(3) == 1:
        from cutaway.kernels.attention import triton, triton_segments

        if query_starts is None:
            starts = [0, *accumulate(plan.query_lengths)]
            query_starts = torch.tensor(starts, device=query.device)
        form = triton_segments if is_invariant else triton
        return form.paged_attention(
            query,
            key_pages,
            value_pages,
            page_table=page_table,
            query_starts=query_starts,
            context_lengths=context_lengths,
            plan=plan,
            scoring=Scoring(softmax_scale, extent, cap, sinks),
            key_scales=key_scales,
            value_scales=value_scales,
        )
    return plain.paged_attention(
        query,
        key_pages,
        value_pages,
        page_table=page_table,
        context_lengths=context_lengths,
        plan=plan,
        softmax_scale=softmax_scale,
        extent=extent,
        cap=cap,
        sinks=sinks,
        key_scales=key_scales,
        value_scales=value_scales,
    )


def invariant_paged_attention(
    query: Tensor, key_pages: Tensor, value_pages: Tensor, **given: Any
) -> Tensor:
    """paged_attention whose rows have the same bits in any company and cut."""
    return paged_attention(query, key_pages, value_pages, is_invariant=True, **given)


@operation(shape_of=_mixed)
def naive_paged_attention(
    query: Tensor, key_pages: Tensor, value_pages: Tensor, **given: Any
) -> Tensor:
    """See naive.naive_paged_attention."""
    return naive.naive_paged_attention(query, key_pages, value_pages, **given)


@operation(shape_of=_latent_mixed)
def paged_latent_attention(
    query: Tensor,
    latent_pages: Tensor,
    rotary_pages: Tensor,
    *,
    page_table: Tensor,
    context_lengths: Tensor,
    plan: ShapePlan,
    softmax_scale: float,
    latent_scales: Tensor | None = None,
    rotary_scales: Tensor | None = None,
) -> Tensor:
    """See plain.paged_latent_attention."""
    return plain.paged_latent_attention(
        query,
        latent_pages,
        rotary_pages,
        page_table=page_table,
        context_lengths=context_lengths,
        plan=plan,
        softmax_scale=softmax_scale,
        latent_scales=latent_scales,
        rotary_scales=rotary_scales,
    )
