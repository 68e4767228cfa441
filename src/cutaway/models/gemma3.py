"""Gemma 3, its text: sandwich norms, normed heads, five windows to one full layer, two bases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.activations import GATES, Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import OffsetRMSNorm
from cutaway.blocks.positions import Frequencies, Plain
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import Extent
from cutaway.core.weights import Target
from cutaway.models import names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.extents import (
    FULL_LAYER,
    WINDOW_LAYER,
    extents_of,
    layer_kinds,
    refuse_bidirectional,
    window_width,
)
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf

_PERIOD = 6  # every sixth layer sees all
_LOCAL_BASE, _GLOBAL_BASE = 10_000.0, 1_000_000.0


@dataclass(frozen=True, kw_only=True)
class Gemma3:
    """Configuration of a Gemma 3 model's text part."""

    sizes: Sizes
    kinds: tuple[str, ...]  # of each layer
    frequencies: Mapping[str, Frequencies | None]  # by kind
    window: int | None
    gate: Gate
    softmax_scale: float
    logits_cap: float | None = None
    has_bias: bool = False

    @classmethod
    def from_hf(cls, config: Fields) -> Gemma3:
        """Read a config.json, or the text_config of a model that also sees."""
        refuse_bidirectional(config)
        sizes = sizes_from_hf(config, is_tied=True, head_size=256)
        period = config.integer("sliding_window_pattern", _PERIOD)
        kinds = layer_kinds(config, sizes.num_layers, is_window=lambda i: (i + 1) % period != 0)
        return cls(
            sizes=sizes,
            kinds=kinds,
            frequencies=_frequencies_from_hf(config, sizes),
            window=window_width(config, "sliding_window"),
            gate=gate_of(config, "hidden_activation", "gelu_pytorch_tanh"),
            softmax_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
            logits_cap=config.number_or_none("final_logit_softcapping"),
            has_bias=config.flag("attention_bias", False),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Gemma3:
        """Read GGUF metadata, its fields without the prefix "gemma3."."""
        sizes = sizes_from_gguf(metadata, shapes)
        size = sizes.head_size
        kinds = layer_kinds(metadata, sizes.num_layers, is_window=lambda i: (i + 1) % _PERIOD != 0)
        far = positions.from_gguf(
            metadata,
            head_size=size,
            max_length=sizes.max_length,
            factors=factors,
            base=_GLOBAL_BASE,
        )
        near = Plain(size, metadata.number("rope.freq_base_swa", _LOCAL_BASE))
        # The file does not say the scale: 27B alone, of 62 layers, divides by width per head.
        is_27b = sizes.num_layers == 62
        scalar = sizes.width // sizes.num_heads if is_27b else size
        return cls(
            sizes=sizes,
            kinds=kinds,
            frequencies={FULL_LAYER: far, WINDOW_LAYER: near},
            window=window_width(metadata, "attention.sliding_window"),
            gate=GATES["gelu_tanh"],
            softmax_scale=scalar**-0.5,
            logits_cap=metadata.number_or_none("final_logit_softcapping"),
        )

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Of each layer."""
        return extents_of(self.kinds, self.window)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        groups, size = self.sizes.num_groups, self.sizes.head_size
        specs = [grouped_cache_spec(groups, size, extent) for extent in self.extents]
        return facts_of(self.sizes, "gemma3", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        layers = zip(self.kinds, self.extents, strict=True)
        return decoder(
            self.sizes,
            [self._block(self.frequencies[kind], extent) for kind, extent in layers],
            norm=self._norm(),
            multiplier=math.sqrt(self.sizes.width),
            cap=self.logits_cap,
        )

    def _norm(self) -> OffsetRMSNorm:
        return OffsetRMSNorm(self.sizes.width, self.sizes.epsilon)

    def _block(self, frequencies: Frequencies | None, extent: Extent) -> Block:
        sizes = self.sizes
        return Block(
            norms=(self._norm(), self._norm()),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=frequencies,
                has_bias=self.has_bias,
                has_output_bias=self.has_bias,
                extent=extent,
                head_norms=(
                    OffsetRMSNorm(sizes.head_size, sizes.epsilon),
                    OffsetRMSNorm(sizes.head_size, sizes.epsilon),
                ),
                softmax_scale=self.softmax_scale,
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, gate=self.gate),
            after_norms=(self._norm(), self._norm()),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        sizes, bias, table = self.sizes, self.has_bias, names.sandwich_in_layout(layout)
        shift = names.offset_shift(layout)
        widths = dict.fromkeys(names.SANDWICH_NORMS, sizes.width)
        widths |= {"query_norm": sizes.head_size, "key_norm": sizes.head_size}
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


def _frequencies_from_hf(config: Fields, sizes: Sizes) -> dict[str, Frequencies | None]:
    """Of full layers by rope_theta and its scaling, of windows by rope_local_base_freq."""
    size, length = sizes.head_size, sizes.max_length
    far = positions.from_hf(
        config, head_size=size, max_length=length, kind=FULL_LAYER, base=_GLOBAL_BASE
    )
    if config.nested("rope_parameters").has(WINDOW_LAYER):
        near = positions.from_hf(
            config, head_size=size, max_length=length, kind=WINDOW_LAYER, base=_LOCAL_BASE
        )
    else:
        near = Plain(size, config.number("rope_local_base_freq", _LOCAL_BASE))
    return {FULL_LAYER: far, WINDOW_LAYER: near if far is not None else None}
