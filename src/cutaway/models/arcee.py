"""Arcee (AFM): Llama's form with a feed-forward without a gate, of the squared ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.grouped_decoder import (
    IN_GGUF,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, epsilon=("rms_norm_eps", 1e-5))
    has_bias = config.flag("attention_bias", False)
    return replace(
        decoder_from_hf("arcee", config, sizes=sizes),
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
        gate=activation_name(config, "hidden_act", "relu2"),
        is_gated=False,
        has_mlp_bias=config.flag("mlp_bias", False),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "arcee."."""
    has_bias = "blk.0.attn_q.bias" in shapes
    return replace(
        decoder_from_gguf("arcee", metadata, shapes, factors),
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
        gate="relu2",
        is_gated=False,
        has_mlp_bias="blk.0.ffn_up.bias" in shapes,
        interleaved=IN_GGUF,
    )
