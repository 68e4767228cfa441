"""Attention whose keys and values are read out of one compressed row per token.

One form serves prefill, decode and training: the matrix that would lead from the row to the keys
is absorbed into the query, the one to the values into the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.attention.head_parts import HeadParts, tap_heads
from cutaway.blocks.linear import Linear
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.slots import Cosines
from cutaway.core.layout import FULL, CacheSpec, latent_cache_spec
from cutaway.core.shards import rows_of
from cutaway.core.step import LayerCache, Step
from cutaway.core.weight_targets import KeptRows
from cutaway.kernels.attention import (
    Scoring,
    attention,
    paged_latent_attention,
    trainable_attention,
)
from cutaway.kernels.gather import Gatherer
from cutaway.kernels.linear import project_heads
from cutaway.kernels.rotary import rotate, rotate_neighbours
from cutaway.kernels.store import store
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.scheme import Weight

Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]  # heads, cosines, sines

# How the entries that turn together lie: half a head apart, or side by side.
PAIRS: Mapping[str, Rotate] = {"halves": rotate, "neighbours": rotate_neighbours}

_EPSILON = 1e-6  # of both inner norms, whatever rms_norm_eps says: as in transformers


class LatentAttention(nn.Module):
    """Causal self-attention over compressed rows with a decoupled rotary part.

    Per head the score of a query q against a token is scale * (q_plain . U_key c + q_rotary . k),
    with the token's row c [R] and its rotary key k [C'], which all heads share; the value is
    U_value c. Computed as (U_key^T q_plain) . c and U_value (sum of weights * c).

    query_rank:  None where the query is not compressed.
    frequencies: of the rotary part; None turns nothing.
    pairs:       a name in PAIRS, the order of the rotary entries.

    Letters: A plain entries of a query head, W value entries of a head.
    Shapes: hidden [T, D], cos and sin [T, C'/2] -> [T, D].
    Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        query_rank: int | None,
        rank: int,
        plain_size: int,
        rotary_size: int,
        value_size: int,
        softmax_scale: float,
        frequencies: Frequencies | None,
        pairs: str,
        has_bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.rank = num_heads, rank
        self.plain_size, self.rotary_size, self.value_size = plain_size, rotary_size, value_size
        self.softmax_scale = softmax_scale
        self.frequencies = frequencies
        self.rotate = PAIRS[pairs]
        self.over_own = trainable_attention
        query_rows = num_heads * (plain_size + rotary_size)
        self.query_down = self.query_norm = None
        if query_rank is not None:
            self.query_down = Linear(width, (query_rank,), has_bias=has_bias)
            self.query_norm = RMSNorm(query_rank, _EPSILON)
        self.query = Linear(query_rank or width, (query_rows,))
        self.down = Linear(width, (rank + rotary_size,), has_bias=has_bias)
        self.latent_norm = RMSNorm(rank, _EPSILON)
        self.up = DenseWeight(num_heads * (plain_size + value_size), rank)
        self.output = Linear(num_heads * value_size, (width,), has_bias=has_bias)
        self.parts: HeadParts | None = None  # of heads, among ranks

    def divide(self, group: Gatherer) -> Mapping[str, KeptRows]:
        """Keep a rank's heads; what leads to the rows that all heads share stays whole.

        The cache is not divided: every head reads every row. With fewer heads than ranks each rank
        computes all of them, and only maps are divided.
        Returns: by parameter the rows that are kept.
        """
        self.parts = HeadParts.of(self.num_heads, group)
        if self.parts is None:
            for each in (self.query_down, self.query, self.down, self.output):
                if each is not None:
                    each.divide(group)
            return {}
        self.output.divide(group)
        own = self.parts.own
        self.query.keep([(rows_of(own, self.plain_size + self.rotary_size),)], group)
        up = rows_of(own, self.plain_size + self.value_size)
        self.up = DenseWeight(len(up), self.rank)
        self.num_heads = len(own)
        return {"up.weight": KeptRows((up,))}

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps of each token: a latent, and one key that turns."""
        return latent_cache_spec(self.rank, self.rotary_size)

    def forward(self, hidden: Tensor, rotation: Cosines | None, step: Step, layer: int) -> Tensor:
        """What attention adds to the stream.

        rotation: by the layer's frequencies; None without them.
        Shapes: hidden [T, D] -> [T, D].
        """
        plain, turned = self._query(hidden, rotation, step.adapters)
        up_key, up_value = self._ups(plain.dtype)  # in training products may have fewer bits
        absorbed = project_heads(plain, up_key.transpose(1, 2))  # [T, H, R]
        query = torch.cat((absorbed, turned), dim=-1)
        query = tap_heads(self.parts, step, layer, "blocks.attention.query", query)
        latent, rotary = self.down(hidden, step.adapters, trains=step.trains).split(
            (self.rank, self.rotary_size), dim=-1
        )
        latent = self.latent_norm(latent)  # [T, R]
        rotary = self._turned(rotary[:, None], rotation)[:, 0]  # [T, C']
        latent = step.tap("blocks.attention.latent", latent, layer)
        rotary = step.tap("blocks.attention.rotary", rotary, layer)
        mixed = self._attend(query, latent, rotary, step, layer)
        mixed = tap_heads(self.parts, step, layer, "blocks.attention.mixed", mixed)  # [T, H, R]
        values = project_heads(mixed, up_value.to(mixed.dtype))
        values = values if self.parts is None else self.parts.gather(values)
        return self.output(values.flatten(1), step.adapters)

    @property
    def scoring(self) -> Scoring:
        """How products become scores; see opened.py."""
        return Scoring(self.softmax_scale, FULL, cap=None, sinks=None)

    def entries(self, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of stored tokens. Shapes: [K, 1, R + C'] and [K, 1, R]."""
        latent = stored["latent"]
        return torch.cat((latent, stored["rotary"]), dim=-1)[:, None], latent[:, None]

    def turn_further(self, heads: Tensor, rotation: Cosines) -> Tensor:
        """Queries or keys, turned further: their last entries alone. Shapes: [T, H, R + C']."""
        # Whatever the order of stored pairs, turned ones lie in halves.
        rotary = rotate(heads[..., self.rank :], *rotation)
        return torch.cat((heads[..., : self.rank], rotary), dim=-1)

    def updates(self, mixed: Tensor) -> Tensor:
        """What each head adds to the layer's update, the output's bias left out.

        Shapes: mixed [T, H, R] -> [T, H, D].
        """
        _, up_value = self._ups(mixed.dtype)
        values = torch.einsum("thr,hwr->thw", mixed, up_value)
        output = self.output.dense().to(mixed.dtype)
        return torch.einsum("thw,dhw->thd", values, output.view(-1, *values.shape[1:]))

    def _ups(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """From rows to keys and to values, head by head. Shapes: [H, A, R], [H, W, R]."""
        up = cast(Weight, self.up).dense().view(self.num_heads, -1, self.rank).to(dtype)
        return up[:, : self.plain_size], up[:, self.plain_size :]

    def _query(
        self, hidden: Tensor, rotation: Cosines | None, adapters: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The plain and the rotary part of each head. Shapes: [T, H, A], [T, H, C']."""
        if self.query_down is not None and self.query_norm is not None:
            hidden = self.query_norm(self.query_down(hidden, adapters))
        heads = self.query(hidden, adapters).view(len(hidden), self.num_heads, -1)
        plain, rotary = heads.split((self.plain_size, self.rotary_size), dim=-1)
        return plain, self._turned(rotary, rotation)

    def _turned(self, heads: Tensor, rotation: Cosines | None) -> Tensor:
        return heads if rotation is None else self.rotate(heads, *rotation)

    def _attend(
        self, query: Tensor, latent: Tensor, rotary: Tensor, step: Step, layer: int
    ) -> Tensor:
        if step.caches:
            return self._through_pages(query, latent, rotary, step, step.caches[layer])
        over_own = self.over_own if step.trains else attention
        return over_own(
            query,
            torch.cat((latent, rotary), dim=-1)[:, None],
            latent[:, None],
            plan=step.plan,
            softmax_scale=self.softmax_scale,
        )

    def _through_pages(
        self, query: Tensor, latent: Tensor, rotary: Tensor, step: Step, cache: LayerCache
    ) -> Tensor:
        tables = step.groups[cache.group]
        latent_scales, rotary_scales = cache.scales("latent"), cache.scales("rotary")
        store(cache.fields["latent"], latent, tables.slots, scales=latent_scales)
        store(cache.fields["rotary"], rotary, tables.slots, scales=rotary_scales)
        return paged_latent_attention(
            query,
            cache.fields["latent"],
            cache.fields["rotary"],
            page_table=tables.page_table,
            context_lengths=step.context_lengths,
            plan=step.plan,
            softmax_scale=self.softmax_scale,
            latent_scales=latent_scales,
            rotary_scales=rotary_scales,
        )
