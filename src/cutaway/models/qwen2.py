"""Qwen2 and 2.5: biases on queries, keys and values, and a window in later layers if asked."""

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
class Qwen2:
    """Configuration of a Qwen2 model."""

    sizes: Sizes
    frequencies: Frequencies | None
    extents: tuple[Extent, ...]  # of each layer
    gate: Gate

    @classmethod
    def from_hf(cls, config: Fields) -> Qwen2:
        """Read a config.json."""
        sizes = sizes_from_hf(config)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            frequencies=frequencies,
            extents=qwen_extents(config, sizes.num_layers),
            gate=gate_of(config, "hidden_act", "silu"),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Qwen2:
        """Read GGUF metadata, its fields without the prefix "qwen2."."""
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
        return facts_of(self.sizes, "qwen2", targets=self.targets("hf"), cache_specs=specs)

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
                has_bias=True,
                extent=extent,
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, gate=self.gate),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table = names.in_layout(layout)
        widths = {"attention_norm": self.sizes.width, "mlp_norm": self.sizes.width}
        targets = names.end_targets(self.sizes, table)
        for layer in range(self.sizes.num_layers):
            targets |= names.norm_targets(table, layer, widths)
            targets |= names.attention_targets(self.sizes, table, layer, has_bias=True)
            targets |= names.gated_targets(self.sizes, table, layer)
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.in_layout(layout))
