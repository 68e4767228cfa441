"""Qwen3.5, its text, dense or with experts: three layers with a state for each with attention.

Source: transformers' Qwen3_5TextModel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.shapes import DeltaShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import delta_layers, rotary_config, tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.delta_layers import FULL_LAYER
from cutaway.models.parts.expert_layers import ExpertSizes, SharedExperts
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_hf
from cutaway.models.parts.tensor_names import HF, Names, Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.slots import FeedForward
    from cutaway.blocks.transformer import Transformer


def from_hf(config: Fields) -> Qwen35:
    """Read a config.json; one that counts experts has them in every layer."""
    if config.flag("attention_bias", False):
        raise UnsupportedModelError(
            f"{config.file}: attention_bias is true; a Qwen3.5 model has false."
        )
    gate = activation_name(config, "hidden_act", "silu")
    experts = _experts(config, gate) if config.has("num_experts") else None
    inner = None if experts is None else experts.sizes.inner
    sizes = sizes_from_hf(config, head_size=256, inner=inner)
    frequencies = rotary_config.from_hf(
        config,
        head_size=sizes.head_size,
        max_length=sizes.max_length,
        share=delta_layers.SHARE,
    )
    return Qwen35(
        sizes=rotary_config.stretch(sizes, frequencies),
        delta=delta_layers.delta_sizes(config),
        experts=experts,
        kinds=delta_layers.delta_kinds(config, sizes.num_layers),
        frequencies=frequencies,
        gate=gate,
    )


@dataclass(frozen=True, kw_only=True)
class Qwen35:
    """Configuration of a Qwen3.5 model's text part.

    kinds: STATE_LAYER or FULL_LAYER, by layer. experts: of every layer, or None.
    """

    sizes: Sizes
    delta: DeltaShape
    experts: SharedExperts | None
    kinds: tuple[str, ...]
    frequencies: Frequencies | None
    gate: str

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        """What the engine has to know of the model before it is built."""
        specs = delta_layers.delta_cache_specs(self.sizes, self.delta, self.kinds)
        return facts_of(self.sizes, "qwen3_5", targets=self.targets("hf"), cache_specs=specs)

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        mlp = Mlp(inner=self.sizes.inner) if self.experts is None else self.experts.shape
        return delta_layers.delta_shape(
            "qwen3_5", self.sizes, self.delta, self.kinds, lambda _: mlp
        )

    def fitting(self, stored: Collection[str]) -> Qwen35:
        """The same for files that hold these names: newer ones keep experts in stacks."""
        if self.experts is None:
            return self
        has_stacks = any(name.endswith(".experts.down_proj") for name in stored)
        return replace(self, experts=replace(self.experts, has_stacks=has_stacks))

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.blocks.attention.delta import ByKind

        return delta_layers.build_delta(
            self.sizes,
            self.delta,
            self.kinds,
            self.frequencies,
            make_reader=ByKind,
            make_mlp=self._mlp,
        )

    def _mlp(self, layer: int) -> FeedForward:
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.mlp import GatedMLP

        if self.experts is not None:
            return self.experts.build(self.sizes.width)
        return GatedMLP(self.sizes.width, self.sizes.inner, gate=GATES[self.gate])

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        assert layout == "hf", "only Hugging Face's layout is read"
        targets = tensor_names.end_targets(self.sizes, HF, rest=0.0)
        for layer, kind in enumerate(self.kinds):
            targets |= self._layer_targets(HF, layer, kind)
        return targets

    def _layer_targets(self, table: Names, layer: int, kind: str) -> Targets:
        sizes, at, to = self.sizes, table["layer"].format(layer), f"blocks.{layer}."
        widths = {"attention_norm": sizes.width, "mlp_norm": sizes.width}
        targets = tensor_names.norm_targets(table, layer, widths, rest=0.0)
        if kind == FULL_LAYER:
            targets |= delta_layers.gated_targets(sizes, table, layer)
        else:
            own = (f"{at}linear_attn.", f"{to}attention.")
            targets |= _state_targets(self.delta, sizes.width, *own)
        if self.experts is None:
            return targets | tensor_names.gated_targets(sizes, table, layer)
        return targets | self.experts.targets("hf", at, f"{to}mlp.", sizes.width)

    def optional(self, layout: Layout) -> frozenset[str]:
        """With the layer that drafts further tokens, which published files hold."""
        own = ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        drafting = self._layer_targets({**HF, "layer": "mtp.layers.{}."}, 0, FULL_LAYER)
        spare = {f"mtp.{name}.weight" for name in own} | drafting.keys()
        return tensor_names.optional_names(self.sizes, layout, HF) | spare


def _experts(config: Fields, gate: str) -> SharedExperts:
    inner = config.integer("moe_intermediate_size", 512)
    sizes = ExpertSizes.read(config, "num_experts", "num_experts_per_tok", inner, default=8)
    return SharedExperts(sizes, gate, True, config.integer("shared_expert_intermediate_size", 512))


def _state_targets(sizes: DeltaShape, width: int, at: str, to: str) -> Targets:
    values, heads = sizes.num_value_heads * sizes.value_size, sizes.num_value_heads
    return {
        **matrix(f"{at}in_proj_qkv", f"{to}reader.joined", 0, (sizes.channels, width)),
        **matrix(f"{at}in_proj_z", f"{to}reader.joined", 1, (values, width)),
        **matrix(f"{at}in_proj_b", f"{to}reader.rates", 0, (heads, width)),
        **matrix(f"{at}in_proj_a", f"{to}reader.rates", 1, (heads, width)),
        **delta_layers.state_targets(sizes, width, at, to),
    }
