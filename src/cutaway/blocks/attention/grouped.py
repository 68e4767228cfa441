"""Multi-head attention in which groups of query heads share a key and a value head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.linear import Linear
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.slots import Cosines, HeadsNorm, Norm
from cutaway.core.layout import FULL, CacheSpec, Extent, grouped_cache_spec
from cutaway.core.step import LayerCache, Step
from cutaway.kernels.attention import (
    Scoring,
    attention,
    naive_paged_attention,
    paged_attention,
    trainable_attention,
)
from cutaway.kernels.dispatch import attends_by_length
from cutaway.kernels.elementwise import sigmoid
from cutaway.kernels.heads import HeadNorm, is_fused, turn_and_store
from cutaway.kernels.rotary import rotate
from cutaway.kernels.store import store

# The other form of the sums over pages, for compare/variant.py.
NAIVE = naive_paged_attention


class GroupedAttention(nn.Module):
    """Causal self-attention.

    One key-value head per query head is multi-head attention; one for all is multi-query.

    frequencies: of rotary positions; None turns nothing.
    extent:      which earlier tokens stay visible.
    is_fused:    one stored matrix holds queries, keys and values.
    keys_are_values: no matrix of its own makes values; they are keys before norm and rotation.
    head_norms:  of each query and each own key head, before they turn.
    cap:         scores are squeezed smoothly between -cap and cap.
    has_sinks:   each head has a learned score that brings no value.
    has_gate:    rows beside each query head's say, by a sigmoid, how much of the result counts.
    is_source:   later layers use this one's keys and values.
    source:      the layer whose keys and values are used; no matrix makes own ones.

    Shapes: hidden [T, D], cos and sin [T, C'/2] -> [T, D].
    Source: Ainslie et al. 2023, arXiv 2305.13245.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_groups: int,
        head_size: int,
        frequencies: Frequencies | None,
        has_bias: bool = False,
        has_output_bias: bool = False,
        is_fused: bool = False,
        extent: Extent = FULL,
        keys_are_values: bool = False,
        head_norms: tuple[Norm, Norm | None] | None = None,
        value_norm: Norm | None = None,
        softmax_scale: float | None = None,
        cap: float | None = None,
        has_sinks: bool = False,
        has_gate: bool = False,
        is_source: bool = False,
        source: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_groups, self.head_size = num_heads, num_groups, head_size
        self.frequencies = frequencies
        self.extent = extent
        self.over_pages = paged_attention
        self.over_own = trainable_attention
        self.softmax_scale = head_size**-0.5 if softmax_scale is None else softmax_scale
        self.cap = cap
        self.query_norm, self.key_norm = head_norms or (None, None)
        self.value_norm = value_norm
        self.sinks = nn.Parameter(torch.zeros(num_heads)) if has_sinks else None
        self.has_gate = has_gate
        self.is_source, self.source = is_source, source
        query_rows = num_heads * head_size * (2 if has_gate else 1)
        own = 0 if source is not None else 1 if keys_are_values else 2
        rows = (query_rows, *[num_groups * head_size] * own)
        self.qkv = Linear(width, (sum(rows),) if is_fused else rows, has_bias=has_bias)
        self.output = Linear(num_heads * head_size, (width,), has_bias=has_output_bias)

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps of each token; nothing where it reads another layer's keys."""
        if self.source is not None:
            return CacheSpec((), self.extent, source=self.source)
        return grouped_cache_spec(self.num_groups, self.head_size, self.extent)

    def forward(self, hidden: Tensor, rotation: Cosines | None, step: Step, layer: int) -> Tensor:
        """What attention adds to the stream.

        rotation: by the layer's frequencies; None without them.
        Shapes: hidden [T, D] -> [T, D].
        """
        heads = self.qkv(hidden).view(hidden.shape[0], -1, self.head_size)  # [T, H + 2G, C]
        if self._is_fused(heads, rotation, step, layer):
            mixed = self._fused(heads, cast(Cosines, rotation), step, layer)
            return self.output(mixed.flatten(1))
        query, gate, heads = self._query(heads)
        if self.query_norm is not None:
            query = self.query_norm(query)
        if rotation is not None:
            query = rotate(query, *rotation)
        query = step.tap("blocks.attention.query", query, layer)
        own = self._own(heads, rotation, step, layer) if self.source is None else None
        if step.caches:
            mixed = self._through_pages(query, own, step, step.caches[layer])
        else:
            mixed = self._alone(query, own, step, layer)
        mixed = step.tap("blocks.attention.mixed", mixed, layer)  # [T, H, C]
        if gate is not None:
            mixed = mixed * step.tap("blocks.attention.gate", sigmoid(gate), layer)
        return self.output(mixed.flatten(1))

    def _is_fused(self, heads: Tensor, rotation: Cosines | None, step: Step, layer: int) -> bool:
        """Whether one kernel norms, turns and stores the heads."""
        if not step.caches or rotation is None or self.has_gate or self.source is not None:
            return False
        norms = (self.query_norm, self.key_norm)
        if self.value_norm is not None or len(self.qkv.rows) == 2:
            return False
        if not all(norm is None or isinstance(norm, HeadsNorm) for norm in norms):
            return False
        fields = step.caches[layer].fields
        return is_fused(heads, fields["key"], fields["value"])

    def _fused(self, heads: Tensor, rotation: Cosines, step: Step, layer: int) -> Tensor:
        """The same as the parts of forward: a sink reads keys and values where they are stored."""
        cache = step.caches[layer]
        slots = step.groups[cache.group].slots
        key_pages, value_pages = cache.fields["key"], cache.fields["value"]
        query = turn_and_store(
            heads,
            *rotation,
            key_pages,
            value_pages,
            slots,
            query_norm=_of_heads(self.query_norm),
            key_norm=_of_heads(self.key_norm),
        )
        query = step.tap("blocks.attention.query", query, layer)
        if step.sink is not None:
            for name, pages in (("key", key_pages), ("value", value_pages)):
                stored = pages.flatten(0, 1)[slots]
                seen = step.tap(f"blocks.attention.{name}", stored, layer)
                if seen is not stored:
                    store(pages, seen, slots)
        mixed = self._over_pages(query, step, cache)
        return step.tap("blocks.attention.mixed", mixed, layer)  # [T, H, C]

    def _own(
        self, heads: Tensor, rotation: Cosines | None, step: Step, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the step's tokens. Shapes: heads [T, 2G, C] -> [T, G, C] each."""
        key = heads[:, : self.num_groups]
        value = heads[:, -self.num_groups :]  # the keys again where they are values too
        if self.value_norm is not None:
            value = self.value_norm(value)
        if self.key_norm is not None:
            key = self.key_norm(key)
        if rotation is not None:
            key = rotate(key, *rotation)
        key = step.tap("blocks.attention.key", key, layer)
        return key, step.tap("blocks.attention.value", value, layer)

    def _query(self, heads: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Query heads, their gates, and what is left. Shapes: [T, H, C] each."""
        if not self.has_gate:
            return heads[:, : self.num_heads], None, heads[:, self.num_heads :]
        pairs = heads[:, : 2 * self.num_heads]  # a head and its gate in turn
        return pairs[:, 0::2], pairs[:, 1::2], heads[:, 2 * self.num_heads :]

    def attends_by_length(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether only what a context has is read of its page table."""
        is_fast = attends_by_length(device, dtype, self.head_size)
        return is_fast and self.over_pages is paged_attention

    @property
    def scoring(self) -> Scoring:
        """How products become scores; see opened.py."""
        return Scoring(self.softmax_scale, self.extent, self.cap, self.sinks)

    def entries(self, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of stored tokens. Shapes: [K, G, C] each."""
        return stored["key"], stored["value"]

    def turn_further(self, heads: Tensor, rotation: Cosines) -> Tensor:
        """Queries or keys, turned further. Shapes: [T, H, C]."""
        return rotate(heads, *rotation)

    def updates(self, mixed: Tensor) -> Tensor:
        """What each head adds to the layer's update, the output's bias left out.

        Shapes: mixed [T, H, C], with gates applied -> [T, H, D].
        """
        output = self.output.dense().to(mixed.dtype)
        return torch.einsum("thc,dhc->thd", mixed, output.view(-1, *mixed.shape[1:]))

    def _alone(
        self, query: Tensor, own: tuple[Tensor, Tensor] | None, step: Step, layer: int
    ) -> Tensor:
        """Attention within the step, which stores nothing."""
        if own is None:
            assert self.source is not None, "a layer without own keys has a source"
            own = step.left[self.source]
        elif self.is_source:
            step.left[layer] = own
        over_own = self.over_own if step.trains else attention
        return over_own(
            query,
            *own,
            plan=step.plan,
            softmax_scale=self.softmax_scale,
            extent=self.extent,
            cap=self.cap,
            sinks=self.sinks,
        )

    def _through_pages(
        self, query: Tensor, own: tuple[Tensor, Tensor] | None, step: Step, cache: LayerCache
    ) -> Tensor:
        # Stored first and read back: what a token sees never depends on which chunk it came in.
        if own is not None:
            slots = step.groups[cache.group].slots
            store(cache.fields["key"], own[0], slots, scales=cache.scales("key"))
            store(cache.fields["value"], own[1], slots, scales=cache.scales("value"))
        return self._over_pages(query, step, cache)

    def _over_pages(self, query: Tensor, step: Step, cache: LayerCache) -> Tensor:
        return self.over_pages(
            query,
            cache.fields["key"],
            cache.fields["value"],
            page_table=step.groups[cache.group].page_table,
            query_starts=step.query_starts,
            context_lengths=step.context_lengths,
            plan=step.plan,
            softmax_scale=self.softmax_scale,
            extent=self.extent,
            cap=self.cap,
            sinks=self.sinks,
            key_scales=cache.scales("key"),
            value_scales=cache.scales("value"),
        )


def _of_heads(norm: Norm | None) -> HeadNorm | None:
    return None if norm is None else cast(HeadsNorm, norm).of_heads
