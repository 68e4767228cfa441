"""Qwen3, dense: a norm on every query and key head, and no biases unless asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.activations import GATES, Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import FULL, Extent
from cutaway.core.weights import Target
from cutaway.models import names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.extents import qwen_extents
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Qwen3:
    """Configuration of a Qwen3 model."""

    sizes: Sizes
    frequencies: Frequencies | None
    extents: tuple[Extent, ...]  # of each layer
    gate: Gate
    has_bias: bool = False  # on queries, keys, values and output

    @classmethod
    def from_hf(cls, config: Fields) -> Qwen3:
        """Read a config.json."""
        sizes = sizes_from_hf(config, head_size=128)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            frequencies=frequencies,
            extents=qwen_extents(config, sizes.num_layers),
            gate=gate_of(config, "hidden_act", "silu"),
            has_bias=config.flag("attention_bias", False),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Qwen3:
        """Read GGUF metadata, its fields without the prefix "qwen3."."""
        sizes = sizes_from_gguf(metadata, shapes)
        return cls(
            sizes=sizes,
            frequencies=positions.from_gguf(
                metadata, head_size=sizes.head_size, max_length=sizes.max_length, factors=factors
            ),
            extents=(FULL,) * sizes.num_layers,
            gate=GATES["silu"],
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        groups, size = self.sizes.num_groups, self.sizes.head_size
        specs = [grouped_cache_spec(groups, size, extent) for extent in self.extents]
        return facts_of(self.sizes, "qwen3", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        sizes = self.sizes
        blocks = [self._block(extent) for extent in self.extents]
        return decoder(sizes, blocks, norm=RMSNorm(sizes.width, sizes.epsilon))

    def _block(self, extent: Extent) -> Block:
        sizes = self.sizes
        return Block(
            norms=(RMSNorm(sizes.width, sizes.epsilon), RMSNorm(sizes.width, sizes.epsilon)),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=self.frequencies,
                has_bias=self.has_bias,
                has_output_bias=self.has_bias,
                extent=extent,
                head_norms=(
                    RMSNorm(sizes.head_size, sizes.epsilon),
                    RMSNorm(sizes.head_size, sizes.epsilon),
                ),
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, gate=self.gate),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table = names.in_layout(layout)
        sizes, bias = self.sizes, self.has_bias
        widths = {
            **{"attention_norm": sizes.width, "mlp_norm": sizes.width},
            **{"query_norm": sizes.head_size, "key_norm": sizes.head_size},
        }
        targets = names.end_targets(sizes, table)
        for layer in range(sizes.num_layers):
            targets |= names.norm_targets(table, layer, widths)
            targets |= names.attention_targets(
                sizes, table, layer, has_bias=bias, has_output_bias=bias
            )
            targets |= names.gated_targets(sizes, table, layer)
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.in_layout(layout))
