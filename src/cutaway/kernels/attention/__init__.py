"""Causal attention over a sequence's own tokens or over pages."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from cutaway.core.layout import FULL, Extent
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import plain
from cutaway.kernels.attention.naive import naive_paged_attention
from cutaway.kernels.attention.plain import SEGMENT, Scoring, attention, paged_latent_attention
from cutaway.kernels.attention.trainable import trainable_attention
from cutaway.kernels.dispatch import MOST_HEAD_SIZE, uses_triton

__all__ = [
    "SEGMENT",
    "Scoring",
    "attention",
    "naive_paged_attention",
    "paged_attention",
    "paged_latent_attention",
    "trainable_attention",
]


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
) -> Tensor:
    """See plain.paged_attention.

    query_starts: first query of each sequence, and their number [B + 1]; None makes it of plan.
    """
    if uses_triton(query) and query.shape[-1] <= MOST_HEAD_SIZE and key_pages.stride(3) == 1:
        from cutaway.kernels.attention import triton

        if query_starts is None:
            starts = [0, *accumulate(plan.query_lengths)]
            query_starts = torch.tensor(starts, device=query.device)
        return triton.paged_attention(
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
