"""Qwen3 with experts: normed query and key heads, and experts in all layers or in some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.blocks.activations import GATES, Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
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
class Qwen3Moe:
    """Configuration of a Qwen3 model with experts. Source: Qwen3, arXiv 2505.09388.

    sparse_layers: those with experts; the others have one gated layer.
    """

    sizes: Sizes
    experts: ExpertSizes
    sparse_layers: frozenset[int]
    is_renormalized: bool
    frequencies: Frequencies | None
    has_bias: bool = False
    extent: Extent = FULL
    gate: Gate = GATES["silu"]

    @classmethod
    def from_hf(cls, config: Fields) -> Qwen3Moe:
        """Read a config.json."""
        sizes = sizes_from_hf(config)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        inner = config.integer("moe_intermediate_size")
        count = "num_experts" if config.has("num_experts") else "num_local_experts"
        dense, every = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
        has_window = config.flag("use_sliding_window", False)
        width = window_width(config, "sliding_window") if has_window else None
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            experts=ExpertSizes.read(config, count, "num_experts_per_tok", inner, default=8),
            sparse_layers=frozenset(
                layer
                for layer in range(sizes.num_layers)
                if layer not in dense and (layer + 1) % every == 0
            ),
            is_renormalized=config.flag("norm_topk_prob", False),
            frequencies=frequencies,
            gate=gate_of(config, "hidden_act", "silu"),
            has_bias=config.flag("attention_bias", False),
            extent=FULL if width is None else Window(width),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Qwen3Moe:
        """Read GGUF metadata, its fields without the prefix "qwen3moe.".

        The format has no word for norm_topk_prob; all published models set it.
        """
        sizes = sizes_from_gguf(metadata, shapes)
        inner = metadata.integer("expert_feed_forward_length")
        layers = range(sizes.num_layers)
        return cls(
            sizes=sizes,
            experts=ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner),
            sparse_layers=frozenset(i for i in layers if experts.has_experts(shapes, i)),
            is_renormalized=True,
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
        return facts_of(self.sizes, "qwen3_moe", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        sizes = self.sizes
        blocks = [self._block(layer) for layer in range(sizes.num_layers)]
        return decoder(sizes, blocks, norm=RMSNorm(sizes.width, sizes.epsilon))

    def _block(self, layer: int) -> Block:
        sizes, epsilon = self.sizes, self.sizes.epsilon
        return Block(
            norms=(RMSNorm(sizes.width, epsilon), RMSNorm(sizes.width, epsilon)),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=self.frequencies,
                head_norms=(RMSNorm(sizes.head_size, epsilon), RMSNorm(sizes.head_size, epsilon)),
                has_bias=self.has_bias,
                has_output_bias=self.has_bias,
                extent=self.extent,
            ),
            mlp=self._experts() if layer in self.sparse_layers else self._dense(),
        )

    def _dense(self) -> GatedMLP:
        return GatedMLP(self.sizes.width, self.sizes.inner, gate=self.gate)

    def _experts(self) -> MixtureOfExperts:
        width, count = self.sizes.width, self.experts.num_experts
        rule = SoftmaxThenTop(self.experts.num_chosen, is_renormalized=self.is_renormalized)
        return MixtureOfExperts(
            Router(width, count, rule), Experts(count, width, self.experts.inner, gate=self.gate)
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table, sizes = names.in_layout(layout), self.sizes
        widths = {
            **{"attention_norm": sizes.width, "mlp_norm": sizes.width},
            **{"query_norm": sizes.head_size, "key_norm": sizes.head_size},
        }
        targets = names.end_targets(sizes, table)
        for layer in range(sizes.num_layers):
            targets |= names.norm_targets(table, layer, widths)
            targets |= names.attention_targets(
                sizes, table, layer, has_bias=self.has_bias, has_output_bias=self.has_bias
            )
            if layer not in self.sparse_layers:
                targets |= names.gated_targets(sizes, table, layer)
                continue
            at, to = table["layer"].format(layer), f"blocks.{layer}.mlp."
            if layout == "gguf":
                targets |= experts.stacked_targets(at, to, self.experts, sizes.width)
                continue
            targets |= experts.router_targets(f"{at}mlp.gate", to, self.experts, sizes.width)
            targets |= experts.separate_targets(
                f"{at}mlp.experts.{{}}", to, self.experts, sizes.width, names=experts.PROJECTIONS
            )
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.in_layout(layout))
