"""Gemma 4, its text: inputs for each layer, keys shared between layers, and experts beside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import CacheSpec, Extent, grouped_cache_spec
from cutaway.core.shapes import Grouped, LayerShape, MatrixShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import expert_layers, rotary_config, tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes
from cutaway.models.parts.extents import (
    FULL_LAYER,
    WINDOW_LAYER,
    extents_of,
    layer_kinds,
    refuse_bidirectional,
    window_width,
)
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_hf
from cutaway.models.parts.tensor_names import HF_SANDWICH, Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.attention.grouped import GroupedAttention
    from cutaway.blocks.block import Block
    from cutaway.blocks.layer_inputs import LayerInputs
    from cutaway.blocks.mlp import GatedMLP
    from cutaway.blocks.moe import MixtureOfExperts
    from cutaway.blocks.norm import WideRMSNorm
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.transformer import Transformer

_PERIOD = 6  # every sixth layer sees all


def from_hf(config: Fields) -> Gemma4:
    """Read a config.json, in the form of the hub (global_...) or with per_layer_config."""
    refuse_bidirectional(config)
    sizes = sizes_from_hf(config, is_tied=True, head_size=256)
    kinds = layer_kinds(config, sizes.num_layers, is_window=lambda i: (i + 1) % _PERIOD != 0)
    kinds = (*kinds[:-1], FULL_LAYER)  # as transformers does, whatever the file says
    shares = config.flag("attention_k_eq_v", False)
    layer = config.read_mapping("per_layer_config").read_numbered(kinds.index(FULL_LAYER))
    head_size = layer.integer("head_dim", config.integer("global_head_dim", 512))
    groups = config.integer("num_global_key_value_heads", sizes.num_groups)
    groups = layer.integer("num_key_value_heads", groups if shares else sizes.num_groups)
    return Gemma4(
        sizes=sizes,
        kinds=kinds,
        full_head_size=head_size,
        full_num_groups=groups,
        keys_are_values=shares,
        frequencies=_frequencies(config, sizes, head_size),
        window=window_width(config, "sliding_window"),
        gate=activation_name(config, "hidden_activation", "gelu_pytorch_tanh"),
        per_layer_input=_per_layer_input(config, sizes.vocab_size),
        sources=_sources(config, kinds),
        is_wide=config.flag("use_double_wide_mlp", False),
        experts=_experts(config),
        logits_cap=config.number_or_none("final_logit_softcapping"),
        has_bias=config.flag("attention_bias", False),
    )


@dataclass(frozen=True, kw_only=True)
class Gemma4:
    """Configuration of a Gemma 4 model's text part. Source: transformers' Gemma4TextModel.

    per_layer_input: numbers that each layer gets of a token beside the stream; 0 for none.
    sources: by layer, the earlier one whose keys and values it uses, or None.
    """

    sizes: Sizes
    kinds: tuple[str, ...]  # of each layer
    full_head_size: int
    full_num_groups: int
    keys_are_values: bool  # in full layers
    frequencies: Mapping[str, Frequencies | None]  # by kind
    window: int | None
    gate: str
    per_layer_input: int
    sources: tuple[int | None, ...]
    is_wide: bool  # the feed-forward of layers with a source is twice as wide
    experts: ExpertSizes | None
    logits_cap: float | None = None
    has_bias: bool = False

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Of each layer."""
        return extents_of(self.kinds, self.window)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        return self.sizes.end_token_ids

    def sizes_of(self, layer: int) -> Sizes:
        """The sizes that a layer has."""
        is_wide = self.is_wide and self.sources[layer] is not None
        sizes = replace(self.sizes, inner=self.sizes.inner * (2 if is_wide else 1))
        if self.kinds[layer] == WINDOW_LAYER:
            return sizes
        return replace(sizes, head_size=self.full_head_size, num_groups=self.full_num_groups)

    @property
    def facts(self) -> ModelFacts:
        """What the engine has to know of the model before it is built."""
        specs = [self._cache_spec(layer) for layer in range(self.sizes.num_layers)]
        return facts_of(self.sizes, "gemma4", targets=self.targets("hf"), cache_specs=specs)

    def _cache_spec(self, layer: int) -> CacheSpec:
        sizes, extent, source = self.sizes_of(layer), self.extents[layer], self.sources[layer]
        if source is not None:
            return CacheSpec((), extent, source=source)
        return grouped_cache_spec(sizes.num_groups, sizes.head_size, extent)

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        sizes, inner = self.sizes, self.per_layer_input
        width, every = sizes.width, sizes.num_layers * inner
        tables = (MatrixShape(sizes.vocab_size, every, kind="lookup"), MatrixShape(every, width))
        return ModelShape(
            architecture="gemma4",
            vocab_size=sizes.vocab_size,
            width=width,
            is_tied=sizes.is_tied,
            layers=tuple(self._layer_shape(layer) for layer in range(sizes.num_layers)),
            norms=width + inner,
            more=tables if inner else (),
        )

    def _layer_shape(self, layer: int) -> LayerShape:
        sizes, inner, sparse = self.sizes_of(layer), self.per_layer_input, self.experts
        width, mlp = sizes.width, Mlp(inner=sizes.inner)
        if sparse is not None:
            router = width + sparse.num_experts  # a norm's weights, and a factor per expert
            mlp = replace(sparse.shape, inner=sizes.inner, router_vectors=router)
        return LayerShape(
            attention=Grouped(
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                extent=self.extents[layer],
                has_bias=self.has_bias,
                has_output_bias=self.has_bias,
                has_head_norms=True,
                has_value=not self._shares(self.kinds[layer]),
                has_cache=self.sources[layer] is None,
            ),
            mlp=mlp,
            # four, one of the layer's input, three of experts, and what the output is times
            norms=width * (4 + bool(inner) + 3 * (sparse is not None)) + 1,
            more=(MatrixShape(inner, width), MatrixShape(width, inner)) if inner else (),
        )

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.models.parts.decoder import decoder

        sizes = self.sizes
        return decoder(
            sizes,
            [self._block(layer) for layer in range(sizes.num_layers)],
            norm=self._norm(),
            multiplier=math.sqrt(sizes.width),
            cap=self.logits_cap,
            layer_inputs=self._layer_inputs() if self.per_layer_input else None,
        )

    def _layer_inputs(self) -> LayerInputs:
        from cutaway.blocks.layer_inputs import LayerInputs
        from cutaway.blocks.norm import WideRMSNorm

        sizes, inner = self.sizes, self.per_layer_input
        return LayerInputs(
            sizes.vocab_size,
            sizes.width,
            num_layers=sizes.num_layers,
            inner=inner,
            norm=WideRMSNorm(inner, sizes.epsilon),
        )

    def _norm(self) -> WideRMSNorm:
        from cutaway.blocks.norm import WideRMSNorm

        return WideRMSNorm(self.sizes.width, self.sizes.epsilon)

    def _block(self, layer: int) -> Block:
        from torch import nn

        from cutaway.blocks.activations import GATES
        from cutaway.blocks.block import Block
        from cutaway.blocks.layer_inputs import LayerInput
        from cutaway.blocks.mlp import GatedMLP

        width, inner, gate = self.sizes.width, self.per_layer_input, GATES[self.gate]
        dense = GatedMLP(width, self.sizes_of(layer).inner, gate=gate)
        has_experts = self.experts is not None
        return Block(
            # Beside experts the feed-forward has norms of its own for either branch.
            norms=(self._norm(), nn.Identity() if has_experts else self._norm()),
            attention=self._attention(layer),
            mlp=dense if self.experts is None else self._mixture(dense, self.experts),
            after_norms=(self._norm(), self._norm()),
            layer_input=LayerInput(width, inner, gate=gate, norm=self._norm()) if inner else None,
            has_gain=True,
        )

    def _attention(self, layer: int) -> GroupedAttention:
        from cutaway.blocks.attention.grouped import GroupedAttention
        from cutaway.blocks.norm import UnitRMSNorm, WideRMSNorm

        sizes, kind, source = self.sizes_of(layer), self.kinds[layer], self.sources[layer]
        own = None if source is not None else WideRMSNorm(sizes.head_size, sizes.epsilon)
        return GroupedAttention(
            sizes.width,
            num_heads=sizes.num_heads,
            num_groups=sizes.num_groups,
            head_size=sizes.head_size,
            frequencies=self.frequencies[kind],
            has_bias=self.has_bias,
            has_output_bias=self.has_bias,
            extent=self.extents[layer],
            keys_are_values=self._shares(kind),
            head_norms=(WideRMSNorm(sizes.head_size, sizes.epsilon), own),
            value_norm=UnitRMSNorm(sizes.epsilon),
            softmax_scale=1.0,  # the head norms' weights hold it
            is_source=layer in self.sources,
            source=source,
        )

    def _mixture(self, dense: GatedMLP, sizes: ExpertSizes) -> MixtureOfExperts:
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.moe import Experts, MixtureOfExperts
        from cutaway.blocks.router import Router, WeighedSoftmax

        width, count = self.sizes.width, sizes.num_experts
        rule = WeighedSoftmax(count, num_chosen=sizes.num_chosen, multiplier=width**-0.5)
        return MixtureOfExperts(
            Router(width, count, rule, norm=self._norm()),
            Experts(count, width, sizes.inner, gate=GATES[self.gate]),
            dense,
            norms=(self._norm(), self._norm(), self._norm(), self._norm()),
        )

    def _shares(self, kind: str) -> bool:
        return self.keys_are_values and kind == FULL_LAYER

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        assert layout == "hf", "only Hugging Face's layout is read"
        targets = tensor_names.end_targets(self.sizes, HF_SANDWICH)
        if self.per_layer_input:
            targets |= _input_targets(self.sizes, self.per_layer_input)
        for layer in range(self.sizes.num_layers):
            targets |= self._layer_targets(layer)
        return targets

    def _layer_targets(self, layer: int) -> Targets:
        table, sizes, kind = HF_SANDWICH, self.sizes_of(layer), self.kinds[layer]
        at, to = table["layer"].format(layer), f"blocks.{layer}."
        widths = dict.fromkeys(tensor_names.SANDWICH_NORMS, sizes.width)
        widths |= {"query_norm": sizes.head_size, "key_norm": sizes.head_size}
        targets = tensor_names.norm_targets(table, layer, widths) | tensor_names.attention_targets(
            sizes, table, layer, has_bias=self.has_bias, has_output_bias=self.has_bias
        )
        targets |= tensor_names.gated_targets(sizes, table, layer)
        left_out = _own_names(layer) if self.sources[layer] is not None else ()
        if self._shares(kind):
            left_out = (*left_out, at + table["value"])
        targets = {n: t for n, t in targets.items() if not n.startswith(left_out)}
        targets[f"{at}layer_scalar"] = Target(f"{to}gain", (1,))
        if self.per_layer_input:
            own = (at, f"{to}layer_input.")
            targets |= _layer_input_targets(*own, sizes.width, self.per_layer_input)
        if self.experts is None:
            return targets
        return _beside_experts(targets, at, f"{to}mlp.", self.experts, sizes.width)

    def optional(self, layout: Layout) -> frozenset[str]:
        """With the keys' and values' own weights that layers with a source may still have."""
        spare = {
            f"{name}.{kind}"
            for layer, source in enumerate(self.sources)
            if source is not None
            for name in _own_names(layer)
            for kind in ("weight", "bias")
        }
        return tensor_names.optional_names(self.sizes, layout, HF_SANDWICH) | spare


def _own_names(layer: int) -> tuple[str, ...]:
    """Modules that make keys and values."""
    at = HF_SANDWICH["layer"].format(layer)
    return tuple(at + HF_SANDWICH[name] for name in ("key", "value", "key_norm"))


def _frequencies(
    config: Fields, sizes: Sizes, full_head_size: int
) -> dict[str, Frequencies | None]:
    length, size = sizes.max_length, sizes.head_size
    return {
        FULL_LAYER: rotary_config.from_hf(
            config, head_size=full_head_size, max_length=length, kind=FULL_LAYER, base=1e6
        ),
        WINDOW_LAYER: rotary_config.from_hf(
            config, head_size=size, max_length=length, kind=WINDOW_LAYER
        ),
    }


def _per_layer_input(config: Fields, vocab_size: int) -> int:
    inner = config.integer("hidden_size_per_layer_input", 256, least=0)
    rows = config.integer("vocab_size_per_layer_input", vocab_size)
    if inner and rows != vocab_size:
        raise UnsupportedModelError(
            f"{config.file}: vocab_size_per_layer_input is {rows}; it must be vocab_size, "
            f"{vocab_size}, so that every token has its inputs."
        )
    return inner


def _sources(config: Fields, kinds: tuple[str, ...]) -> tuple[int | None, ...]:
    """By layer whose keys and values it uses: of the last own ones, those of its kind."""
    shared = config.integer("num_kv_shared_layers", 0, least=0)
    own = kinds[: max(0, len(kinds) - shared)]
    if not set(kinds) <= set(own):
        raise ModelFormatError(
            f"is {shared}; of each kind of layer, {' and '.join(sorted(set(kinds)))}, one at least "
            "must have keys of its own.",
            file=config.file,
            field="num_kv_shared_layers",
        )
    last = {kind: layer for layer, kind in enumerate(own)}
    return tuple(None if layer < len(own) else last[kind] for layer, kind in enumerate(kinds))


def _experts(config: Fields) -> ExpertSizes | None:
    if not config.flag("enable_moe_block", False):
        return None
    inner = config.integer("moe_intermediate_size")
    return ExpertSizes.read(config, "num_experts", "top_k_experts", inner)


def _input_targets(sizes: Sizes, inner: int) -> Targets:
    every = sizes.num_layers * inner
    table = Target("layer_inputs.table.weight", (sizes.vocab_size, every))
    stored, shape = "model.per_layer_model_projection", (every, sizes.width)
    return {
        "model.embed_tokens_per_layer.weight": table,
        **matrix(stored, "layer_inputs.projection", 0, shape),
        "model.per_layer_projection_norm.weight": Target("layer_inputs.norm.weight", (inner,)),
    }


def _layer_input_targets(at: str, to: str, width: int, inner: int) -> Targets:
    return {
        **matrix(f"{at}per_layer_input_gate", f"{to}gate_rows", 0, (inner, width)),
        **matrix(f"{at}per_layer_projection", f"{to}projection", 0, (width, inner)),
        f"{at}post_per_layer_input_norm.weight": Target(f"{to}norm.weight", (width,)),
    }


def _beside_experts(targets: Targets, at: str, to: str, sizes: ExpertSizes, width: int) -> Targets:
    """A layer's targets where the feed-forward has experts beside it."""
    dense, first = f"{at}mlp.", f"{at}pre_feedforward_layernorm.weight"
    moved = {
        name: replace(target, parameter=target.parameter.replace(to, f"{to}shared."))
        if name.startswith(dense)
        else target
        for name, target in targets.items()
    }
    norms = {
        "pre_feedforward_layernorm": "shared_norm",
        "post_feedforward_layernorm_1": "shared_after_norm",
        "pre_feedforward_layernorm_2": "experts_norm",
        "post_feedforward_layernorm_2": "experts_after_norm",
    }
    del moved[first]
    moved |= {f"{at}{n}.weight": Target(f"{to}{own}.weight", (width,)) for n, own in norms.items()}
    count, inner = sizes.num_experts, sizes.inner
    return moved | {
        **expert_layers.router_targets(f"{at}router.proj", to, sizes, width),
        f"{at}router.scale": Target(f"{to}router.norm.weight", (width,)),
        f"{at}router.per_expert_scale": Target(f"{to}router.rule.factors", (count,)),
        f"{at}experts.gate_up_proj": Target(
            f"{to}experts.gate_up.weight", (count, 2 * inner, width)
        ),
        f"{at}experts.down_proj": Target(f"{to}experts.down.weight", (count, width, inner)),
    }
