"""Qwen3-Next: three layers with a state for each one with gated attention, and many experts.

Source: transformers' Qwen3NextModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.shapes import DeltaShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import delta_layers, rotary_config, tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.delta_layers import FULL_LAYER, STATE_LAYER
from cutaway.models.parts.expert_layers import ExpertSizes, SharedExperts, sparse_layers
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_hf
from cutaway.models.parts.tensor_names import HF, Names, Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.slots import FeedForward
    from cutaway.blocks.transformer import Transformer


def from_hf(config: Fields) -> Qwen3Next:
    """Read a config.json."""
    if config.flag("attention_bias", False):
        raise UnsupportedModelError(
            f"{config.file}: attention_bias is true; a Qwen3-Next model has false."
        )
    sizes = sizes_from_hf(config, head_size=256)
    frequencies = rotary_config.from_hf(
        config,
        head_size=sizes.head_size,
        max_length=sizes.max_length,
        share=delta_layers.SHARE,
    )
    gate = activation_name(config, "hidden_act", "silu")
    count = "num_experts" if config.has("num_experts") else "num_local_experts"
    inner = config.integer("moe_intermediate_size")
    return Qwen3Next(
        sizes=rotary_config.stretch(sizes, frequencies),
        delta=delta_layers.delta_sizes(config),
        experts=SharedExperts(
            ExpertSizes.read(config, count, "num_experts_per_tok", inner, default=10),
            gate,
            config.flag("norm_topk_prob", True),
            config.integer("shared_expert_intermediate_size"),
        ),
        kinds=delta_layers.delta_kinds(config, sizes.num_layers),
        sparse_layers=sparse_layers(config, sizes.num_layers),
        frequencies=frequencies,
        gate=gate,
    )


@dataclass(frozen=True, kw_only=True)
class Qwen3Next:
    """Configuration of a Qwen3-Next model.

    kinds: STATE_LAYER or FULL_LAYER, by layer. sparse_layers: those with experts.
    """

    sizes: Sizes
    delta: DeltaShape
    experts: SharedExperts
    kinds: tuple[str, ...]
    sparse_layers: frozenset[int]
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
        return facts_of(self.sizes, "qwen3_next", targets=self.targets("hf"), cache_specs=specs)

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        dense, mixed = Mlp(inner=self.sizes.inner), self.experts.shape
        return delta_layers.delta_shape(
            "qwen3_next",
            self.sizes,
            self.delta,
            self.kinds,
            lambda layer: mixed if layer in self.sparse_layers else dense,
        )

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.blocks.attention.delta import ByHead

        return delta_layers.build_delta(
            self.sizes,
            self.delta,
            self.kinds,
            self.frequencies,
            make_reader=ByHead,
            make_mlp=self._mlp,
        )

    def _mlp(self, layer: int) -> FeedForward:
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.mlp import GatedMLP

        if layer in self.sparse_layers:
            return self.experts.build(self.sizes.width)
        return GatedMLP(self.sizes.width, self.sizes.inner, gate=GATES[self.gate])

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        assert layout == "hf", "only Hugging Face's layout is read"
        targets = tensor_names.end_targets(self.sizes, HF, rest=0.0)
        for layer in range(self.sizes.num_layers):
            targets |= self._layer_targets(
                HF, layer, self.kinds[layer], is_sparse=layer in self.sparse_layers
            )
        return targets

    def _layer_targets(self, table: Names, layer: int, kind: str, *, is_sparse: bool) -> Targets:
        sizes, at, to = self.sizes, table["layer"].format(layer), f"blocks.{layer}."
        widths = {"attention_norm": sizes.width, "mlp_norm": sizes.width}
        targets = tensor_names.norm_targets(table, layer, widths, rest=0.0)
        if kind == STATE_LAYER:
            own = (f"{at}linear_attn.", f"{to}attention.")
            targets |= _state_targets(self.delta, sizes.width, *own)
        else:
            targets |= delta_layers.gated_targets(sizes, table, layer)
        if is_sparse:
            return targets | self.experts.targets("hf", at, f"{to}mlp.", sizes.width)
        return targets | tensor_names.gated_targets(sizes, table, layer)

    def optional(self, layout: Layout) -> frozenset[str]:
        """With the layer that drafts further tokens, which published files hold."""
        own = ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        table = {**HF, "layer": "mtp.layers.{}."}
        drafting = self._layer_targets(table, 0, FULL_LAYER, is_sparse=True)
        spare = {f"mtp.{name}.weight" for name in own} | drafting.keys()
        return tensor_names.optional_names(self.sizes, layout, HF) | spare


def _state_targets(sizes: DeltaShape, width: int, at: str, to: str) -> Targets:
    values, heads = sizes.num_value_heads * sizes.value_size, sizes.num_value_heads
    return {
        **matrix(f"{at}in_proj_qkvz", f"{to}reader.joined", 0, (sizes.channels + values, width)),
        **matrix(f"{at}in_proj_ba", f"{to}reader.rates", 0, (2 * heads, width)),
        **delta_layers.state_targets(sizes, width, at, to),
    }
