"""Causal grouped-query attention in plain PyTorch: the definition that faster forms must meet.

Order of summation: keys are cut into segments at absolute positions; each segment is reduced
alone; segments are merged in order. So what a query gets does not depend on chunk borders.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.step import ShapePlan
from cutaway.kernels.elementwise import row_sum

SEGMENT = 256  # keys


def attention(
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
    """Attend within each sequence of the step; nothing is read from or written to a cache.

    Differentiable, for training and scoring.

    cap:   scores are squeezed smoothly between -cap and cap, after scaling and before the mask.
    sinks: a score per head that takes part in the softmax and brings no value.

    Shapes: query [T, H, C]; key, value [T, G, C] with H a multiple of G; sinks [H] -> [T, H, C].
    Units:  softmax_scale multiplies the dot products.
    Source: Vaswani et al. 2017, arXiv 1706.03762; groups: Ainslie et al. 2023, arXiv 2305.13245.
    """
    lengths = list(plan.query_lengths)
    scoring = Scoring(softmax_scale, extent, cap, sinks)
    parts = zip(
        torch.split(query_THC, lengths),
        torch.split(key_TGC, lengths),
        torch.split(value_TGC, lengths),
        strict=True,
    )
    return torch.cat([_attend(q, k, v, 0, scoring) for q, k, v in parts])


def paged_attention(
    query_THC: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    *,
    page_table: Tensor,
    context_lengths: Tensor,
    plan: ShapePlan,
    softmax_scale: float,
    extent: Extent = FULL,
    cap: float | None = None,
    sinks: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """Attend to all stored tokens of each sequence, the step's own included.

    A sequence's queries are its last tokens: query i of n sits at context_length - n + i.

    Shapes: query [T, H, C]; key_pages, value_pages [N, P, G, C], their scales [N, P, G];
            page_table [B, M]; context_lengths [B] -> [T, H, C].
    Units:  softmax_scale multiplies the dot products.
    """
    scoring = Scoring(softmax_scale, extent, cap, sinks)
    wide = torch.promote_types(query_THC.dtype, torch.float32)
    keys, values = _Entries(key_pages, key_scales, wide), _Entries(value_pages, value_scales, wide)
    return _attend_pages(query_THC, keys, values, page_table, context_lengths, plan, scoring)


def paged_latent_attention(
    query_THC: Tensor,
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
    """The same where all heads share one latent row, which is key and value, and a rotary key.

    Shapes: query [T, H, R + C']; latent_pages [N, P, R], rotary_pages [N, P, C'], their scales
            [N, P]; page_table [B, M]; context_lengths [B] -> [T, H, R].
    Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1 (keys and values absorbed).
    """
    scoring = Scoring(softmax_scale, FULL, cap=None, sinks=None)
    wide = torch.promote_types(query_THC.dtype, torch.float32)
    latent, rotary = (
        _Entries(pages[:, :, None], None if scales is None else scales[:, :, None], wide)
        for pages, scales in ((latent_pages, latent_scales), (rotary_pages, rotary_scales))
    )
    keys = _SideBySide(latent, rotary)
    return _attend_pages(query_THC, keys, latent, page_table, context_lengths, plan, scoring)


def _attend_pages(
    query_THC: Tensor,
    keys: _Entries | _SideBySide,
    values: _Entries,
    page_table: Tensor,
    context_lengths: Tensor,
    plan: ShapePlan,
    scoring: Scoring,
) -> Tensor:
    if plan.is_decode:
        return _attend_decode(query_THC, keys, values, page_table, context_lengths, scoring)
    outputs: list[Tensor] = []
    lengths = zip(plan.query_lengths, plan.context_lengths, strict=True)
    queries = torch.split(query_THC, list(plan.query_lengths))
    page_size = values.page_shape[0]
    for row, (query, (num_queries, num_keys)) in enumerate(zip(queries, lengths, strict=True)):
        pages = page_table[row, : -(-num_keys // page_size)]
        key = keys.of(pages).flatten(0, 1)[:num_keys]
        value = values.of(pages).flatten(0, 1)[:num_keys]
        first = num_keys - num_queries
        outputs.append(_attend(query, key, value, first, scoring))
    return torch.cat(outputs)


@dataclass(frozen=True)
class _Entries:
    """Keys or values in pages, as numbers of the dtype in which attention computes."""

    pages: Tensor  # [N, P, G, C]
    scales: Tensor | None  # [N, P, G]
    dtype: torch.dtype

    @property
    def page_shape(self) -> torch.Size:
        return self.pages.shape[1:]

    def of(self, pages: Tensor) -> Tensor:
        """Shapes: [...] page indices -> [..., P, G, C]."""
        entries = self.pages[pages].to(self.dtype)
        return entries if self.scales is None else entries * self.scales[pages][..., None]


@dataclass(frozen=True)
class _SideBySide:
    """Keys of two parts that are kept apart."""

    left: _Entries
    right: _Entries

    def of(self, pages: Tensor) -> Tensor:
        return torch.cat((self.left.of(pages), self.right.of(pages)), dim=-1)


@dataclass(frozen=True)
class Scoring:
    """How dot products become scores, and which of them count."""

    softmax_scale: float
    extent: Extent
    cap: float | None
    sinks: Tensor | None  # [H]

    def scale_products(self, products: Tensor) -> Tensor:
        """Times the scale, and then below the cap."""
        scores = products * self.softmax_scale
        return scores if self.cap is None else self.cap * (scores / self.cap).tanh()

    def scores(self, products: Tensor, visible: Tensor) -> Tensor:
        """What goes into the softmax: -inf where a key is not visible."""
        return self.scale_products(products).masked_fill(~visible, -torch.inf)

    def first_key(self, first_query: int) -> int:
        """First key that queries from a position on can see."""
        if not isinstance(self.extent, Window) or self.extent.sinks:
            return 0
        return max(0, first_query - self.extent.width + 1)

    def visible(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Which keys a query may see: none after it, and in a window none too far before it."""
        visible = key_positions <= query_positions
        if isinstance(self.extent, Window):
            is_near = key_positions > query_positions - self.extent.width
            visible = visible & (is_near | (key_positions < self.extent.sinks))
        return visible


def _attend(
    query_QHC: Tensor, key_KGC: Tensor, value_KGC: Tensor, first: int, scoring: Scoring
) -> Tensor:
    """Attention of one sequence whose first query sits at position first."""
    num_queries, num_heads, head_size = query_QHC.shape
    num_keys, num_groups, _ = key_KGC.shape
    wide = torch.promote_types(query_QHC.dtype, torch.float32)
    shared = num_heads // num_groups
    query = query_QHC.to(wide).view(num_queries, num_groups, shared, head_size)
    query = query.permute(1, 2, 0, 3).reshape(num_groups, shared * num_queries, head_size)
    key, value = key_KGC.to(wide).transpose(0, 1), value_KGC.to(wide).transpose(0, 1)
    query_positions = torch.arange(first, first + num_queries, device=query.device)
    query_positions = query_positions.repeat(shared)  # one row per head and query
    merged: _Partial | None = None
    # A segment that no query sees would be merged with weight 0: skipping it changes no bit.
    for start in range(scoring.first_key(first) // SEGMENT * SEGMENT, num_keys, SEGMENT):
        stop = min(start + SEGMENT, num_keys)
        positions = torch.arange(start, stop, device=query.device)
        visible = scoring.visible(query_positions[:, None], positions[None, :])
        products = query @ key[:, start:stop].transpose(1, 2)  # [G, HQ, K]
        seen = _seen(value[:, start:stop], visible.any(dim=0))
        part = _reduce(scoring.scores(products, visible), seen)
        merged = part if merged is None else _merge(merged, part)
    assert merged is not None, "a query sees at least its own key"
    if scoring.sinks is not None:  # one row per head and query
        sinks = scoring.sinks.view(num_groups, shared, 1).repeat_interleave(num_queries, dim=1)
        merged = _merge(merged, _valueless(sinks, merged))
    output = _finish(merged).view(num_groups, shared, num_queries, -1)
    output = output.permute(2, 0, 1, 3).reshape(num_queries, num_heads, -1)
    return output.to(query_QHC.dtype)


def _attend_decode(
    query_BHC: Tensor,
    keys: _Entries | _SideBySide,
    values: _Entries,
    page_table: Tensor,
    context_lengths: Tensor,
    scoring: Scoring,
) -> Tensor:
    """One query per sequence, by the page table's width alone: fit for a captured graph."""
    num_sequences, num_heads, head_size = query_BHC.shape
    page_size, num_groups = values.page_shape[:2]
    query = query_BHC.to(values.dtype).view(
        num_sequences, num_groups, num_heads // num_groups, head_size
    )
    newest = context_lengths[:, None] - 1  # [B, 1]
    pages_per_segment = max(1, SEGMENT // page_size)
    merged: _Partial | None = None
    for start in range(0, page_table.shape[1], pages_per_segment):
        pages = page_table[:, start : start + pages_per_segment]
        key = keys.of(pages).flatten(1, 2).transpose(1, 2)  # [B, G, K, C]
        value = values.of(pages).flatten(1, 2).transpose(1, 2)
        first = start * page_size
        positions = torch.arange(first, first + key.shape[2], device=query.device)
        visible = scoring.visible(newest, positions[None, :])[:, None, :]  # [B, 1, K]
        products = query @ key.transpose(2, 3)  # [B, G, H/G, K]
        scores = scoring.scores(products, visible[:, :, None, :])
        part = _reduce(scores, _seen(value, visible))
        merged = part if merged is None else _merge(merged, part)
    assert merged is not None, "a page table has at least one page"
    if scoring.sinks is not None:
        sinks = scoring.sinks.view(num_groups, -1, 1)
        merged = _merge(merged, _valueless(sinks, merged))
    return _finish(merged).reshape(num_sequences, num_heads, -1).to(query_BHC.dtype)


_Partial = tuple[Tensor, Tensor, Tensor]  # highest score, sum of weights, weighted values


def _seen(value: Tensor, visible: Tensor) -> Tensor:
    """Zero what no query sees: a page's other slots may hold anything, and 0 * NaN is NaN."""
    return value.masked_fill(~visible[..., None], 0.0)


def _reduce(scores: Tensor, value: Tensor) -> _Partial:
    """Softmax-weighted sum over one segment, unnormalized. A fully masked row has weight 0."""
    highest = scores.amax(dim=-1, keepdim=True)
    # A masked row would give -inf - -inf: any finite reference does, since its weights are 0.
    reference = highest.masked_fill(highest == -torch.inf, 0.0)
    weights = torch.exp(scores - reference)
    return highest, row_sum(weights), weights @ value


def _merge(left: _Partial, right: _Partial) -> _Partial:
    """Join two segments under their common highest score."""
    highest = torch.maximum(left[0], right[0])
    reference = highest.masked_fill(highest == -torch.inf, 0.0)
    scale_left, scale_right = torch.exp(left[0] - reference), torch.exp(right[0] - reference)
    return (
        highest,
        left[1] * scale_left + right[1] * scale_right,
        left[2] * scale_left + right[2] * scale_right,
    )


def _valueless(scores: Tensor, merged: _Partial) -> _Partial:
    """A segment of one key per row whose value is zero."""
    highest = scores.to(merged[0].dtype).expand_as(merged[0])
    return highest, torch.ones_like(highest), torch.zeros_like(merged[2])


def _finish(merged: _Partial) -> Tensor:
    return merged[2] / merged[1]
