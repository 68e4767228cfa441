"""Gemma 4, its dense text: full layers have heads of their own size, and may share keys as values.

Left out, and refused: embeddings per layer (the E models), keys shared between layers, experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutaway.blocks.activations import Gate
from cutaway.blocks.attention.grouped import GroupedAttention, grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import UnitRMSNorm, WideRMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import Extent
from cutaway.core.weights import Target
from cutaway.models import names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.extents import (
    FULL_LAYER,
    WINDOW_LAYER,
    extents_of,
    layer_kinds,
    refuse_bidirectional,
    window_width,
)
from cutaway.models.fields import Fields
from cutaway.models.sizes import Sizes, facts_of, sizes_from_hf

_PERIOD = 6  # every sixth layer sees all
# Fields that must be absent, 0 or false, and what they would bring.
_LEFT_OUT = {
    "hidden_size_per_layer_input": "embeddings per layer",
    "num_kv_shared_layers": "keys and values shared between layers",
    "enable_moe_block": "experts",
}


@dataclass(frozen=True, kw_only=True)
class Gemma4:
    """Configuration of a Gemma 4 model's text part."""

    sizes: Sizes
    kinds: tuple[str, ...]  # of each layer
    full_head_size: int
    full_num_groups: int
    keys_are_values: bool  # in full layers
    frequencies: Mapping[str, Frequencies | None]  # by kind
    window: int | None
    gate: Gate
    logits_cap: float | None = None
    has_bias: bool = False

    @classmethod
    def from_hf(cls, config: Fields) -> Gemma4:
        """Read a config.json, in the form of the hub (global_...) or with per_layer_config."""
        refuse_bidirectional(config)
        _refuse_left_out(config)
        sizes = sizes_from_hf(config, is_tied=True, head_size=256)
        kinds = layer_kinds(config, sizes.num_layers, is_window=lambda i: (i + 1) % _PERIOD != 0)
        kinds = (*kinds[:-1], FULL_LAYER)  # as transformers does, whatever the file says
        shares = config.flag("attention_k_eq_v", False)
        layer = config.nested("per_layer_config").numbered(kinds.index(FULL_LAYER))
        head_size = layer.integer("head_dim", config.integer("global_head_dim", 512))
        groups = config.integer("num_global_key_value_heads", sizes.num_groups)
        groups = layer.integer("num_key_value_heads", groups if shares else sizes.num_groups)
        length = sizes.max_length
        return cls(
            sizes=sizes,
            kinds=kinds,
            full_head_size=head_size,
            full_num_groups=groups,
            keys_are_values=shares,
            frequencies={
                FULL_LAYER: positions.from_hf(
                    config, head_size=head_size, max_length=length, kind=FULL_LAYER, base=1e6
                ),
                WINDOW_LAYER: positions.from_hf(
                    config, head_size=sizes.head_size, max_length=length, kind=WINDOW_LAYER
                ),
            },
            window=window_width(config, "sliding_window"),
            gate=gate_of(config, "hidden_activation", "gelu_pytorch_tanh"),
            logits_cap=config.number_or_none("final_logit_softcapping"),
            has_bias=config.flag("attention_bias", False),
        )

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Of each layer."""
        return extents_of(self.kinds, self.window)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    def sizes_of(self, kind: str) -> Sizes:
        """The sizes that a kind of layer has."""
        if kind == WINDOW_LAYER:
            return self.sizes
        return replace(self.sizes, head_size=self.full_head_size, num_groups=self.full_num_groups)

    @property
    def facts(self) -> ModelFacts:
        layers = [
            (self.sizes_of(kind), extent)
            for kind, extent in zip(self.kinds, self.extents, strict=True)
        ]
        specs = [grouped_cache_spec(s.num_groups, s.head_size, extent) for s, extent in layers]
        return facts_of(self.sizes, "gemma4", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        layers = zip(self.kinds, self.extents, strict=True)
        return decoder(
            self.sizes,
            [self._block(kind, extent) for kind, extent in layers],
            norm=self._norm(),
            multiplier=math.sqrt(self.sizes.width),
            cap=self.logits_cap,
        )

    def _norm(self) -> WideRMSNorm:
        return WideRMSNorm(self.sizes.width, self.sizes.epsilon)

    def _block(self, kind: str, extent: Extent) -> Block:
        sizes = self.sizes_of(kind)
        return Block(
            norms=(self._norm(), self._norm()),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=self.frequencies[kind],
                has_bias=self.has_bias,
                has_output_bias=self.has_bias,
                extent=extent,
                keys_are_values=self._shares(kind),
                head_norms=(
                    WideRMSNorm(sizes.head_size, sizes.epsilon),
                    WideRMSNorm(sizes.head_size, sizes.epsilon),
                ),
                value_norm=UnitRMSNorm(sizes.epsilon),
                softmax_scale=1.0,  # the head norms' weights hold it
            ),
            mlp=GatedMLP(sizes.width, sizes.inner, gate=self.gate),
            after_norms=(self._norm(), self._norm()),
            has_gain=True,
        )

    def _shares(self, kind: str) -> bool:
        return self.keys_are_values and kind == FULL_LAYER

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        table, bias = names.HF_SANDWICH, self.has_bias
        targets = names.end_targets(self.sizes, table)
        for layer, kind in enumerate(self.kinds):
            sizes = self.sizes_of(kind)
            widths = dict.fromkeys(names.SANDWICH_NORMS, sizes.width)
            widths |= {"query_norm": sizes.head_size, "key_norm": sizes.head_size}
            at = table["layer"].format(layer)
            targets |= names.norm_targets(table, layer, widths)
            attention = names.attention_targets(
                sizes, table, layer, has_bias=bias, has_output_bias=bias
            )
            if self._shares(kind):
                value = at + table["value"]
                attention = {n: t for n, t in attention.items() if not n.startswith(value)}
            targets |= attention | names.gated_targets(sizes, table, layer)
            targets[f"{at}layer_scalar"] = Target(f"blocks.{layer}.gain", (1,))
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        return names.optional_names(self.sizes, layout, names.HF_SANDWICH)


def _refuse_left_out(config: Fields) -> None:
    for field, what in _LEFT_OUT.items():
        if config.truth(field):
            raise UnsupportedModelError(
                f"{config.file}: {field} asks for {what}; Gemma 4 models without them are "
                "supported."
            )
