"""Mixtral: Llama's attention, and in every layer experts of which a token uses the best two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.activations import GATES, Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.moe import Experts, MixtureOfExperts
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.router import Router, SoftmaxThenTop
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.weights import Target
from cutaway.models import experts, names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.experts import ExpertSizes
from cutaway.models.extents import window_width
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Mixtral:
    """Configuration of a Mixtral model. Source: Jiang et al. 2024, arXiv 2401.04088."""

    sizes: Sizes
    experts: ExpertSizes
    frequencies: Frequencies | None
    extent: Extent = FULL
    gate: Gate = GATES["silu"]

    @classmethod
    def from_hf(cls, config: Fields) -> Mixtral:
        """Read a config.json."""
        sizes = sizes_from_hf(config)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length, base=1e6
        )
        width = window_width(config, "sliding_window")
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            experts=ExpertSizes.read(
                config, "num_local_experts", "num_experts_per_tok", sizes.inner, default=2
            ),
            frequencies=frequencies,
            gate=gate_of(config, "hidden_act", "silu"),
            extent=FULL if width is None else Window(width),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Mixtral:
        """Read GGUF metadata, its fields without the prefix "llama."."""
        sizes = sizes_from_gguf(metadata, shapes)
        return cls(
            sizes=sizes,
            experts=ExpertSizes.read(metadata, "expert_count", "expert_used_count", sizes.inner),
            frequencies=positions.from_gguf(
                metadata, head_size=sizes.head_size, max_length=sizes.max_length, factors=factors
            ),
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        spec = grouped_cache_spec(self.sizes.num_groups, self.sizes.head_size, self.extent)
        specs = (spec,) * self.sizes.num_layers
        return facts_of(self.sizes, "mixtral", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        sizes = self.sizes
        blocks = [self._block() for _ in range(sizes.num_layers)]
        return decoder(sizes, blocks, norm=RMSNorm(sizes.width, sizes.epsilon))

    def _block(self) -> Block:
        sizes, count = self.sizes, self.experts.num_experts
        rule = SoftmaxThenTop(self.experts.num_chosen, is_renormalized=True)
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
            mlp=MixtureOfExperts(
                Router(sizes.width, count, rule),
                Experts(count, sizes.width, self.experts.inner, gate=self.gate),
            ),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table, width = names.in_layout(layout), self.sizes.width
        targets = names.end_targets(self.sizes, table)
        for layer in range(self.sizes.num_layers):
            at, to = table["layer"].format(layer), f"blocks.{layer}.mlp."
            targets |= names.norm_targets(
                table, layer, {"attention_norm": width, "mlp_norm": width}
            )
            targets |= names.attention_targets(
                self.sizes,
                table,
                layer,
                # GGUF calls the model a llama, and keeps query and key rows as of one.
                is_interleaved=layout == "gguf",
            )
            if layout == "gguf":
                targets |= experts.stacked_targets(at, to, self.experts, width)
            else:
                moe = f"{at}block_sparse_moe."
                targets |= experts.router_targets(f"{moe}gate", to, self.experts, width)
                targets |= experts.separate_targets(
                    f"{moe}experts.{{}}", to, self.experts, width, names=experts.MIXTRAL
                )
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.in_layout(layout))
