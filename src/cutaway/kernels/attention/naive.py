"""Attention over pages as the formula has it: all scores of a sequence at once, one softmax.

What paged_attention gives to rounding, for whoever wants to see what reducing as keys come spares:
here the scores of all heads, queries and keys lie in memory together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.core.layout import FULL, Extent
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention.plain import Scoring


def naive_paged_attention(
    query_THC: Tensor,
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
    """Shapes and units as those of paged_attention; context lengths are read from the plan."""
    del context_lengths, query_starts  # the host's own numbers are needed to cut
    scoring, outputs = Scoring(softmax_scale, extent, cap, sinks), list[Tensor]()
    queries = torch.split(query_THC, list(plan.query_lengths))
    for row, (query, num_keys) in enumerate(zip(queries, plan.context_lengths, strict=True)):
        pages = page_table[row, : -(-num_keys // key_pages.shape[1])]
        key, value = (
            _read(stored, scales, pages)[:num_keys]
            for stored, scales in ((key_pages, key_scales), (value_pages, value_scales))
        )
        outputs.append(_attend(query, key, value, scoring))
    return torch.cat(outputs)


def _read(stored: Tensor, scales: Tensor | None, pages: Tensor) -> Tensor:
    """A sequence's entries in order. Shapes: [N, P, G, C], pages [M] -> [M * P, G, C]."""
    entries = stored[pages].to(torch.promote_types(stored.dtype, torch.float32))
    entries = entries if scales is None else entries * scales[pages][..., None]
    return entries.flatten(0, 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
    """Shapes: query [Q, H, C]; key, value [K, G, C] -> [Q, H, C]."""
    num_queries, num_heads, _ = query.shape
    num_keys, num_groups, _ = key.shape
    wide = torch.promote_types(query.dtype, key.dtype)
    grouped = query.to(wide).view(num_queries, num_groups, num_heads // num_groups, -1)
    products = torch.einsum("qgsc,kgc->gsqk", grouped, key.to(wide))
    places = torch.arange(num_keys, device=query.device)
    visible = scoring.visible(places[num_keys - num_queries :, None], places)  # [Q, K]
    scores = scoring.scores(products, visible)  # [G, H/G, Q, K]
    if scoring.sinks is not None:
        column = scoring.sinks.to(wide).view(num_groups, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., :num_keys]
    # A page that left the window may hold anything, and 0 * NaN is NaN.
    seen = value.to(wide).masked_fill(~visible.any(dim=0)[:, None, None], 0.0)
    mixed = torch.einsum("gsqk,kgc->qgsc", weights, seen)
    return mixed.reshape(num_queries, num_heads, -1).to(query.dtype)
