"""Llama 1 to 3 and what shares their shape: pre-norm, rotary, grouped queries, SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.grouped_decoder import (
    IN_GGUF,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    has_bias = config.flag("attention_bias", False)
    return replace(
        decoder_from_hf("llama", config),
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
        has_mlp_bias=config.flag("mlp_bias", False),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "llama."."""
    has_bias = "blk.0.attn_q.bias" in shapes
    return replace(
        decoder_from_gguf("llama", metadata, shapes, factors),
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
        has_mlp_bias="blk.0.ffn_gate.bias" in shapes,
        interleaved=IN_GGUF,
    )
