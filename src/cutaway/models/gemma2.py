"""Gemma 2: sandwich norms, capped scores and logits, a window in every other layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import extents_of, layer_kinds, refuse_bidirectional, window_width
from cutaway.models.parts.grouped_decoder import (
    SANDWICH,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    refuse_bidirectional(config)
    sizes = sizes_from_hf(config, is_tied=True, head_size=256)
    has_bias = config.flag("attention_bias", False)
    attention = AttentionForm(
        has_bias=has_bias,
        has_output_bias=has_bias,
        softmax_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        cap=config.number_or_none("attn_logit_softcapping", 50.0),
    )
    made = replace(
        decoder_from_hf("gemma2", config, sizes=sizes),
        gate=activation_name(config, "hidden_activation", "gelu_pytorch_tanh"),
    )
    return _gemma2(made, config, attention, window="sliding_window")


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "gemma2."."""
    made = replace(decoder_from_gguf("gemma2", metadata, shapes, factors), gate="gelu_tanh")
    # The file does not say the scale: 27B alone, of 46 layers, divides by width per head.
    sizes, is_27b = made.sizes, made.sizes.num_layers == 46
    scalar = sizes.width // sizes.num_heads if is_27b else sizes.head_size
    attention = AttentionForm(
        softmax_scale=scalar**-0.5, cap=metadata.number_or_none("attn_logit_softcapping", 50.0)
    )
    return _gemma2(made, metadata, attention, window="attention.sliding_window")


def _gemma2(
    made: GroupedDecoder, config: Fields, attention: AttentionForm, *, window: str
) -> GroupedDecoder:
    """What both layouts mean. window: the name of its field."""
    kinds = layer_kinds(config, made.sizes.num_layers, is_window=lambda layer: layer % 2 == 0)
    return replace(
        made,
        attention=attention,
        extents=extents_of(kinds, window_width(config, window)),
        norms_at="around",
        norm="offset",
        multiplier=math.sqrt(made.sizes.width),
        logits_cap=config.number_or_none("final_logit_softcapping", 30.0),
        names=SANDWICH,
    )
