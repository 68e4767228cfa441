"""Gemma 2: sandwich norms, capped scores and logits, a window in every other layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.activations import GATES, Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import OffsetRMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import Extent
from cutaway.core.weights import Target
from cutaway.models import names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.extents import extents_of, layer_kinds, refuse_bidirectional, window_width
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Gemma2:
    """Configuration of a Gemma 2 model."""

    sizes: Sizes
    frequencies: Frequencies | None
    extents: tuple[Extent, ...]  # of each layer
    gate: Gate
    softmax_scale: float
    scores_cap: float | None
    logits_cap: float | None
    has_bias: bool = False

    @classmethod
    def from_hf(cls, config: Fields) -> Gemma2:
        """Read a config.json."""
        refuse_bidirectional(config)
        sizes = sizes_from_hf(config, is_tied=True, head_size=256)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        kinds = layer_kinds(config, sizes.num_layers, is_window=lambda layer: layer % 2 == 0)
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            frequencies=frequencies,
            extents=extents_of(kinds, window_width(config, "sliding_window")),
            gate=gate_of(config, "hidden_activation", "gelu_pytorch_tanh"),
            softmax_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
            scores_cap=config.number_or_none("attn_logit_softcapping", 50.0),
            logits_cap=config.number_or_none("final_logit_softcapping", 30.0),
            has_bias=config.flag("attention_bias", False),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Gemma2:
        """Read GGUF metadata, its fields without the prefix "gemma2."."""
        sizes = sizes_from_gguf(metadata, shapes)
        kinds = layer_kinds(metadata, sizes.num_layers, is_window=lambda layer: layer % 2 == 0)
        # The file does not say the scale: 27B alone, of 46 layers, divides by width per head.
        is_27b = sizes.num_layers == 46
        scalar = sizes.width // sizes.num_heads if is_27b else sizes.head_size
        return cls(
            sizes=sizes,
            frequencies=positions.from_gguf(
                metadata, head_size=sizes.head_size, max_length=sizes.max_length, factors=factors
            ),
            extents=extents_of(kinds, window_width(metadata, "attention.sliding_window")),
            gate=GATES["gelu_tanh"],
            softmax_scale=scalar**-0.5,
            scores_cap=metadata.number_or_none("attn_logit_softcapping", 50.0),
            logits_cap=metadata.number_or_none("final_logit_softcapping", 30.0),
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        groups, size = self.sizes.num_groups, self.sizes.head_size
        specs = [grouped_cache_spec(groups, size, extent) for extent in self.extents]
        return facts_of(self.sizes, "gemma2", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        return decoder(
            self.sizes,
            [self._block(extent) for extent in self.extents],
            norm=self._norm(),
            multiplier=math.sqrt(self.sizes.width),
            cap=self.logits_cap,
        )

    def _norm(self) -> OffsetRMSNorm:
        return OffsetRMSNorm(self.sizes.width, self.sizes.epsilon)

    def _block(self, extent: Extent) -> Block:
        sizes = self.sizes
        return Block(
            norms=(self._norm(), self._norm()),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=self.frequencies,
                has_bias=self.has_bias,
                has_output_bias=self.has_bias,
                extent=extent,
                softmax_scale=self.softmax_scale,
                cap=self.scores_cap,
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, gate=self.gate),
            after_norms=(self._norm(), self._norm()),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        sizes, bias, table = self.sizes, self.has_bias, names.sandwich_in_layout(layout)
        shift = names.offset_shift(layout)
        widths = dict.fromkeys(names.SANDWICH_NORMS, sizes.width)
        targets = names.end_targets(sizes, table, shift=shift, rest=0.0)
        for layer in range(sizes.num_layers):
            targets |= names.norm_targets(table, layer, widths, shift=shift, rest=0.0)
            targets |= names.attention_targets(
                sizes, table, layer, has_bias=bias, has_output_bias=bias
            )
            targets |= names.gated_targets(sizes, table, layer)
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.sandwich_in_layout(layout))
