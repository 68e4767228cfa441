"""Multi-head attention in which groups of query heads share a key and a value head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cutaway.blocks.linear import Division, Linear
from cutaway.blocks.norm import HeadLayerNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.slots import Cosines, Norm
from cutaway.core.layout import FULL, CacheSpec, Extent, grouped_cache_spec
from cutaway.core.shards import HeadCut, head_cuts, rows_of, widths
from cutaway.core.step import LayerCache, Step
from cutaway.kernels.attention import (
    Scoring,
    attention,
    invariant_paged_attention,
    naive_paged_attention,
    paged_attention,
    trainable_attention,
)
from cutaway.kernels.dispatch import attends_by_length
from cutaway.kernels.elementwise import sigmoid
from cutaway.kernels.gather import Gatherer, gather_columns
from cutaway.kernels.heads import HeadPlaces, are_placed
from cutaway.kernels.heads.placing import HeadNorms, HeadPages, ProductHeads, place, turn
from cutaway.kernels.norm.late import LateNorm
from cutaway.kernels.rotary import rotate

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
    norms_rows:  they are of all query heads together and of all key heads, as in OLMo 2.
    clip:        queries, keys and values are cut off at -clip and clip.
    cap:         scores are squeezed smoothly between -cap and cap.
    has_sinks:   each head has a learned score that brings no value.
    has_gate:    rows beside each query head's say, by a sigmoid, how much of the result counts.
    read_width:  of what queries, keys and values are made of, where it is not the stream's.
    is_source:   later layers use this one's keys and values.
    source:      the layer whose keys and values are used; no matrix makes own ones.

    Shapes: hidden [T, D], cos and sin [T, C'/2] -> [T, D].
    Source: Ainslie et al. 2023, arXiv 2305.13245.
    """

    takes_norm = True

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
        norms_rows: bool = False,
        clip: float | None = None,
        value_norm: Norm | None = None,
        softmax_scale: float | None = None,
        cap: float | None = None,
        has_sinks: bool = False,
        has_gate: bool = False,
        read_width: int | None = None,
        is_source: bool = False,
        source: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_groups, self.head_size = num_heads, num_groups, head_size
        self.frequencies = frequencies
        self.extent = extent
        self.over_pages: Callable[..., Tensor] = paged_attention
        self.over_own = trainable_attention
        self.softmax_scale = head_size**-0.5 if softmax_scale is None else softmax_scale
        self.cap = cap
        self.query_norm, self.key_norm = head_norms or (None, None)
        self.value_norm = value_norm
        self.norms_rows, self.clip = norms_rows, clip
        assert not has_gate or not (norms_rows or clip), "rows with gates are not normed as rows"
        self.sinks = nn.Parameter(torch.zeros(num_heads)) if has_sinks else None
        self.has_gate = has_gate
        self.is_source, self.source = is_source, source
        query_rows = num_heads * head_size * (2 if has_gate else 1)
        self._num_own = 0 if source is not None else 1 if keys_are_values else 2
        self.sinks_kept: range | None = None
        rows = (query_rows, *[num_groups * head_size] * self._num_own)
        read_width = width if read_width is None else read_width
        self.qkv = Linear(read_width, (sum(rows),) if is_fused else rows, has_bias=has_bias)
        self.output = Linear(num_heads * head_size, (width,), has_bias=has_output_bias)
        self.division: Division | None = None  # of heads' results, among ranks
        self.head_cuts: tuple[HeadCut, ...] = ()  # of all ranks, where heads are divided

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's query heads and the key-value heads that they read; results are gathered.

        With fewer heads than ranks each rank computes all of them, and only maps are divided.
        """
        self.output.divide(group)
        found = head_cuts(self.num_heads, self.num_groups, group.size)
        if found is None:
            self.qkv.divide(group)
            return
        own, size = found[group.rank], self.head_size
        query_size = size * (2 if self.has_gate else 1)
        first = self.num_heads * query_size
        kinds = [rows_of(own.heads, query_size), *[rows_of(own.groups, size)] * self._num_own]
        if len(self.qkv.rows) == 1:  # one matrix: a kind's rows stand behind those of the last
            starts = [0, *(first + i * self.num_groups * size for i in range(self._num_own))]
            moved = [range(k.start + s, k.stop + s) for k, s in zip(kinds, starts, strict=True)]
            self.qkv.keep([tuple(moved)], group)
        else:
            self.qkv.keep([(kind,) for kind in kinds], group)
        if self.sinks is not None:
            self.sinks_kept = own.heads
            self.sinks = nn.Parameter(torch.zeros(len(own.heads)))
        for norm, heads in ((self.query_norm, own.heads), (self.key_norm, own.groups)):
            if isinstance(norm, HeadLayerNorm):
                norm.keep(heads)
        self.num_heads, self.num_groups = len(own.heads), len(own.groups)
        self.division = Division(group, (widths([cut.heads for cut in found], times=size),))
        self.head_cuts = found

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps of each token; nothing where it reads another layer's keys."""
        if self.source is not None:
            return CacheSpec((), self.extent, source=self.source)
        return grouped_cache_spec(self.num_groups, self.head_size, self.extent)

    def forward(
        self, hidden: Tensor | LateNorm, rotation: Cosines | None, step: Step, layer: int
    ) -> Tensor:
        """What attention adds to the stream.

        rotation: by the layer's frequencies; None without them.
        Shapes: hidden [T, D] -> [T, D].
        """
        if isinstance(hidden, LateNorm):
            query = self._placed(hidden, rotation, step, layer)
            if query is not None:
                mixed = self._over_pages(query, step, step.caches[layer])
                return self.output(mixed.flatten(1), step.adapters)
        rows = self.qkv(hidden, step.adapters, trains=step.trains)
        if self.norms_rows or self.clip is not None:
            heads, gate, norms = self._change_rows(rows), None, HeadNorms()
        else:
            heads, gate = self._heads(rows.view(rows.shape[0], -1, self.head_size))
            norms = HeadNorms(self.query_norm, self.key_norm, self.value_norm)
        tap = partial(self._tap, step, layer)
        if step.caches:
            cache = step.caches[layer]
            is_tapped = step.sink is not None
            pages = self._pages(step, cache)
            query = place(heads, norms, rotation, pages, tap=tap, is_tapped=is_tapped)
            mixed = self._over_pages(query, step, cache)
        else:
            query, own = turn(heads, norms, rotation, tap)
            mixed = self._alone(query, own, step, layer)
        mixed = step.tap("blocks.attention.mixed", self._whole(mixed), layer)  # [T, H, C]
        if gate is not None:
            gate = self._whole(sigmoid(gate))
            mixed = mixed * step.tap("blocks.attention.gate", gate, layer)
        return self.output(mixed.flatten(1), step.adapters, trains=step.trains)

    def _placed(
        self, hidden: LateNorm, rotation: Cosines | None, step: Step, layer: int
    ) -> Tensor | None:
        """Queries, where nobody looks and heads are only turned, by the product that makes them."""
        norms = (self.query_norm, self.key_norm, self.value_norm)
        is_bare = all(norm is None for norm in norms) and not (self.norms_rows or self.has_gate)
        is_whole = self._num_own == 2 and self.division is None and self.clip is None
        if rotation is None or step.sink is not None or not (step.caches and is_bare and is_whole):
            return None
        pages = self._pages(step, step.caches[layer])
        places = HeadPlaces(*rotation, pages.key, pages.value, pages.slots)
        if pages.key_scales is not None or not are_placed(hidden.hidden, places):
            return None
        return self.qkv.place_heads(hidden, places, step.adapters)

    def _whole(self, heads: Tensor) -> Tensor:
        """All heads, where ranks have some of them. Shapes: [T, own H, C] -> [T, H, C]."""
        if self.division is None:
            return heads
        every = gather_columns(heads.flatten(1), *self.division)
        return every.view(heads.shape[0], -1, self.head_size)

    def _tap(self, step: Step, layer: int, name: str, value: Tensor) -> Tensor:
        """A tap of heads: a sink sees those of all ranks, and this one goes on with its own.

        Shapes: [T, own heads, C] -> the same.
        """
        name = f"blocks.attention.{name}"
        if self.division is None or step.sink is None:
            return step.tap(name, value, layer)
        is_query, size = name.endswith("query"), self.head_size
        every = self._gather(value.flatten(1), self.division.group, is_query=is_query)
        seen = step.tap(name, every.view(value.shape[0], -1, size), layer)
        return self._own(seen.flatten(1), self.division.group, is_query=is_query).view_as(value)

    def _gather(self, rows: Tensor, group: Gatherer, *, is_query: bool) -> Tensor:
        """Rows of all heads in order, each head once. Shapes: [T, own heads C] -> [T, heads C]."""
        parts = widths(_dealt(self._cuts(is_query=is_query)), times=self.head_size)
        return gather_columns(rows[:, : parts[group.rank]], group, (parts,))

    def _own(self, rows: Tensor, group: Gatherer, *, is_query: bool) -> Tensor:
        """This rank's of such rows. Shapes: [T, heads C] -> [T, own heads C]."""
        own = rows_of(self._cuts(is_query=is_query)[group.rank], self.head_size)
        return rows[:, own.start : own.stop]

    def _cuts(self, *, is_query: bool) -> list[range]:
        """Query heads of each rank, or key-value heads."""
        return [cut.heads if is_query else cut.groups for cut in self.head_cuts]

    def _heads(self, heads: Tensor) -> tuple[ProductHeads, Tensor | None]:
        """Queries, keys and values of a product, and gates of the queries. Shapes: [T, ., C]."""
        query, gate = heads[:, : self.num_heads], None
        if self.has_gate:
            pairs = heads[:, : 2 * self.num_heads]  # a head and its gate in turn
            query, gate = pairs[:, 0::2], pairs[:, 1::2]
        if self.source is not None:
            return ProductHeads(query, None, None, None), gate
        own = heads[:, (2 if self.has_gate else 1) * self.num_heads :]
        # The last ones are the keys again where keys are values too.
        key, value = own[:, : self.num_groups], own[:, -self.num_groups :]
        is_whole = gate is None and own.shape[1] == 2 * self.num_groups
        if is_whole and heads.requires_grad:
            # Split at once: the gradients of three slices would each be as wide as the whole.
            counts = [self.num_heads, self.num_groups, self.num_groups]
            query, key, value = torch.split(heads, counts, dim=1)
        return ProductHeads(query, key, value, heads if is_whole else None), gate

    def _change_rows(self, rows: Tensor) -> ProductHeads:
        """The same of rows that are normed, then clipped, before they are heads."""
        counts = (self.num_heads, self.num_groups, self.num_groups)
        parts = torch.split(rows, [count * self.head_size for count in counts], dim=-1)
        norms = (self.query_norm, self.key_norm, self.value_norm)
        query, key, value = (
            self._change_part(part, norm, is_query=kind == 0).view(-1, count, self.head_size)
            for kind, (part, norm, count) in enumerate(zip(parts, norms, counts, strict=True))
        )
        return ProductHeads(query, key, value, None)

    def _change_part(self, part: Tensor, norm: Norm | None, *, is_query: bool) -> Tensor:
        normed = part if norm is None else self._norm_rows(part, norm, is_query=is_query)
        return normed if self.clip is None else normed.clamp(-self.clip, self.clip)

    def _norm_rows(self, part: Tensor, norm: Norm, *, is_query: bool) -> Tensor:
        """A norm of rows, which every rank takes over those of all heads."""
        if self.division is None:
            return norm(part)
        group = self.division.group
        normed = norm(self._gather(part, group, is_query=is_query))
        return self._own(normed, group, is_query=is_query)

    def _pages(self, step: Step, cache: LayerCache) -> HeadPages:
        """Where the layer's keys and values lie, its own or its source's."""
        slots = step.groups[cache.group].slots
        fields, scales = cache.fields, (cache.scales("key"), cache.scales("value"))
        return HeadPages(fields["key"], fields["value"], *scales, slots)

    def attends_by_length(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether only what a context has is read of its page table."""
        is_fast = attends_by_length(device, dtype, self.head_size)
        return is_fast and self.over_pages in (paged_attention, invariant_paged_attention)

    @property
    def scoring(self) -> Scoring:
        """How products become scores; see opened.py."""
        return Scoring(self.softmax_scale, self.extent, self.cap, self.sinks)

    def entries(self, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of stored tokens. Shapes: [K, G, C] each."""
        return stored["key"], stored["value"]

    def query_rows(self, head: int) -> tuple[Tensor, Tensor | None]:
        """The matrix that makes one head's query, and its bias. Shapes: [C, D], [C]."""
        first = (2 * head if self.has_gate else head) * self.head_size
        rows = slice(first, first + self.head_size)
        biases = self.qkv.biases
        bias = None if biases is None else torch.cat(list(biases))[rows]
        return self.qkv.dense()[rows], bias

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


def _dealt(cuts: Sequence[range]) -> list[range]:
    """The same, but what several ranks have is the first one's alone."""
    starts = [0, *(cut.stop for cut in cuts)]
    return [
        range(max(cut.start, start), cut.stop) for cut, start in zip(cuts, starts, strict=False)
    ]
