"""gpt-oss: attention with sinks, windows in every other layer, and experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutaway.blocks.activations import clamped
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.moe import Experts, MixtureOfExperts, neighbours
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies, Yarn
from cutaway.blocks.router import Router, TopThenSoftmax
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import Extent
from cutaway.core.weights import Target
from cutaway.models import experts, names, positions
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.experts import ExpertSizes
from cutaway.models.extents import extents_of, layer_kinds, window_width
from cutaway.models.fields import Fields
from cutaway.models.names import GGUF, HF, Names, Targets
from cutaway.models.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class GptOss:
    """Configuration of a gpt-oss model. Source: OpenAI 2025, arXiv 2508.10925.

    alpha, limit: of the experts' gate.
    """

    sizes: Sizes
    experts: ExpertSizes
    frequencies: Frequencies | None
    extents: tuple[Extent, ...]
    alpha: float
    limit: float
    has_bias: bool

    @classmethod
    def from_hf(cls, config: Fields) -> GptOss:
        """Read a config.json."""
        sizes = sizes_from_hf(config, head_size=64)
        frequencies = positions.from_hf(
            config, head_size=sizes.head_size, max_length=sizes.max_length, base=150_000.0
        )
        kinds = layer_kinds(config, sizes.num_layers, is_window=lambda layer: layer % 2 == 0)
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            experts=ExpertSizes.read(
                config, "num_local_experts", "num_experts_per_tok", sizes.inner, default=4
            ),
            frequencies=frequencies,
            extents=extents_of(kinds, window_width(config, "sliding_window")),
            alpha=config.number("swiglu_alpha", 1.702),
            limit=config.number("swiglu_limit", 7.0),
            has_bias=config.flag("attention_bias", True),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> GptOss:
        """Read GGUF metadata, its fields without the prefix "gpt-oss.".

        The format has no words for the gate's numbers and the order of windows, and rounds the
        ramp of YaRN, which the model does not: all are the published model's.
        """
        sizes = sizes_from_gguf(metadata, shapes)
        frequencies = positions.from_gguf(
            metadata, head_size=sizes.head_size, max_length=sizes.max_length, factors=factors
        )
        if isinstance(frequencies, Yarn):
            frequencies = replace(frequencies, truncate=False)
        inner = metadata.integer("expert_feed_forward_length", sizes.inner)
        kinds = layer_kinds(metadata, sizes.num_layers, is_window=lambda layer: layer % 2 == 0)
        return cls(
            sizes=sizes,
            experts=ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner),
            frequencies=frequencies,
            extents=extents_of(kinds, window_width(metadata, "attention.sliding_window")),
            alpha=1.702,
            limit=7.0,
            has_bias="blk.0.attn_q.bias" in shapes,
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        groups, size = self.sizes.num_groups, self.sizes.head_size
        specs = [grouped_cache_spec(groups, size, extent) for extent in self.extents]
        return facts_of(self.sizes, "gpt_oss", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        blocks = [self._block(extent) for extent in self.extents]
        return decoder(self.sizes, blocks, norm=RMSNorm(self.sizes.width, self.sizes.epsilon))

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
                has_sinks=True,
            ),
            mlp=self._experts(),
        )

    def _experts(self) -> MixtureOfExperts:
        width, count = self.sizes.width, self.experts.num_experts
        rule = TopThenSoftmax(self.experts.num_chosen)
        return MixtureOfExperts(
            Router(width, count, rule, has_bias=True),
            Experts(
                count,
                width,
                self.experts.inner,
                gate=clamped(alpha=self.alpha, limit=self.limit),
                split=neighbours,
                has_bias=True,
            ),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table, width, bias = _NAMES[layout], self.sizes.width, self.has_bias
        targets = names.end_targets(self.sizes, table)
        widths = {"attention_norm": width, "mlp_norm": width}
        for layer in range(self.sizes.num_layers):
            targets |= names.norm_targets(table, layer, widths)
            targets |= names.attention_targets(
                self.sizes, table, layer, has_bias=bias, has_output_bias=bias
            )
            own = self._hf_targets if layout == "hf" else self._gguf_targets
            targets |= own(table["layer"].format(layer), f"blocks.{layer}.")
        return targets

    def _hf_targets(self, at: str, to: str) -> Targets:
        """Sinks, router and experts, whose matrices lie across: inputs first."""
        width, count, inner = self.sizes.width, self.experts.num_experts, self.experts.inner
        stored, module = f"{at}mlp.experts.", f"{to}mlp.experts."
        return {
            f"{at}self_attn.sinks": Target(f"{to}attention.sinks", (self.sizes.num_heads,)),
            **experts.router_targets(f"{at}mlp.router", f"{to}mlp.", self.experts, width),
            f"{at}mlp.router.bias": Target(f"{to}mlp.router.bias", (count,)),
            f"{stored}gate_up_proj": Target(
                f"{module}gate_up.weight", (count, width, 2 * inner), is_transposed=True
            ),
            f"{stored}gate_up_proj_bias": Target(f"{module}biases.0", (count, 2 * inner)),
            f"{stored}down_proj": Target(
                f"{module}down.weight", (count, inner, width), is_transposed=True
            ),
            f"{stored}down_proj_bias": Target(f"{module}biases.1", (count, width)),
        }

    def _gguf_targets(self, at: str, to: str) -> Targets:
        """The same; the rows of gate and value, which alternate here, lie apart there."""
        width, count, inner = self.sizes.width, self.experts.num_experts, self.experts.inner
        module, every = f"{to}mlp.experts.", slice(None)
        joined, rows, biases = f"{module}gate_up.weight", (count, inner, width), (count, inner)
        gate, value = (every, slice(0, None, 2)), (every, slice(1, None, 2))
        return {
            f"{at}attn_sinks.weight": Target(f"{to}attention.sinks", (self.sizes.num_heads,)),
            **experts.router_targets(f"{at}ffn_gate_inp", f"{to}mlp.", self.experts, width),
            f"{at}ffn_gate_inp.bias": Target(f"{to}mlp.router.bias", (count,)),
            f"{at}ffn_gate_exps.weight": Target(joined, rows, part=gate),
            f"{at}ffn_up_exps.weight": Target(joined, rows, part=value),
            f"{at}ffn_gate_exps.bias": Target(f"{module}biases.0", biases, part=gate),
            f"{at}ffn_up_exps.bias": Target(f"{module}biases.0", biases, part=value),
            f"{at}ffn_down_exps.weight": Target(f"{module}down.weight", (count, width, inner)),
            f"{at}ffn_down_exps.bias": Target(f"{module}biases.1", (count, width)),
        }

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, _NAMES[layout])


_NAMES: Mapping[Layout, Names] = {
    "hf": HF,
    "gguf": {**GGUF, "mlp_norm": "post_attention_norm"},
}
