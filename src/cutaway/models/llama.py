"""Llama 1 to 3 and what shares their shape: pre-norm, rotary, grouped queries, SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.weights import Target
from cutaway.models import names, positions
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Llama:
    """Configuration of a Llama-shaped model."""

    sizes: Sizes
    frequencies: Frequencies | None
    has_attention_bias: bool = False
    has_mlp_bias: bool = False

    @classmethod
    def from_hf(cls, config: Fields) -> Llama:
        """Read a config.json."""
        activation = config.text("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise UnsupportedModelError(
                f"{config.file}: hidden_act is {activation!r}; a Llama model has 'silu'."
            )
        sizes = sizes_from_hf(config)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            frequencies=frequencies,
            has_attention_bias=config.flag("attention_bias", False),
            has_mlp_bias=config.flag("mlp_bias", False),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Llama:
        """Read GGUF metadata, its fields without the prefix "llama."."""
        sizes = sizes_from_gguf(metadata, shapes)
        return cls(
            sizes=sizes,
            frequencies=positions.from_gguf(
                metadata, head_size=sizes.head_size, max_length=sizes.max_length, factors=factors
            ),
            has_attention_bias="blk.0.attn_q.bias" in shapes,
            has_mlp_bias="blk.0.ffn_gate.bias" in shapes,
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        spec = grouped_cache_spec(self.sizes.num_groups, self.sizes.head_size)
        specs = (spec,) * self.sizes.num_layers
        return facts_of(self.sizes, "llama", targets=self.targets("hf"), cache_specs=specs)

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
                has_bias=self.has_attention_bias,
                has_output_bias=self.has_attention_bias,
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, has_bias=self.has_mlp_bias),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table = names.in_layout(layout)
        widths = {"attention_norm": self.sizes.width, "mlp_norm": self.sizes.width}
        targets = names.end_targets(self.sizes, table)
        for layer in range(self.sizes.num_layers):
            targets |= names.norm_targets(table, layer, widths)
            targets |= names.attention_targets(
                self.sizes,
                table,
                layer,
                has_bias=self.has_attention_bias,
                has_output_bias=self.has_attention_bias,
                # GGUF keeps query and key rows of Llama models in the order of interleaved pairs.
                is_interleaved=layout == "gguf",
            )
            targets |= names.gated_targets(self.sizes, table, layer, has_bias=self.has_mlp_bias)
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.in_layout(layout))
