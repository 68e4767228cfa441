"""Mistral: Llama's shape with a window over the last tokens in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.activations import Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.weights import Target
from cutaway.models import names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.extents import window_width
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Mistral:
    """Configuration of a Mistral model. In GGUF files it is called llama, without its window."""

    sizes: Sizes
    frequencies: Frequencies | None
    extent: Extent
    gate: Gate

    @classmethod
    def from_hf(cls, config: Fields) -> Mistral:
        """Read a config.json."""
        sizes = sizes_from_hf(config)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        width = window_width(config, "sliding_window")
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            frequencies=frequencies,
            extent=FULL if width is None else Window(width),
            gate=gate_of(config, "hidden_act", "silu"),
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        spec = grouped_cache_spec(self.sizes.num_groups, self.sizes.head_size, self.extent)
        specs = (spec,) * self.sizes.num_layers
        return facts_of(self.sizes, "mistral", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        sizes = self.sizes
        blocks = [self._block() for _ in range(sizes.num_layers)]
        return decoder(sizes, blocks, norm=RMSNorm(sizes.width, sizes.epsilon))

    def _block(self) -> Block:
        sizes = self.sizes
        return Block(
            norms=(RMSNorm(sizes.width, sizes.epsilon), RMSNorm(sizes.width, sizes.epsilon)),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=self.frequencies,
                extent=self.extent,
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, gate=self.gate),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        widths = {"attention_norm": self.sizes.width, "mlp_norm": self.sizes.width}
        targets = names.end_targets(self.sizes, names.HF)
        for layer in range(self.sizes.num_layers):
            targets |= names.norm_targets(names.HF, layer, widths)
            targets |= names.attention_targets(self.sizes, names.HF, layer)
            targets |= names.gated_targets(self.sizes, names.HF, layer)
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.HF)
