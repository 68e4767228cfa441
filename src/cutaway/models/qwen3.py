"""Qwen3, dense: a norm on every query and key head, and no biases unless asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import qwen_extents
from cutaway.models.parts.grouped_decoder import (
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, head_size=128)
    extents = qwen_extents(config, sizes.num_layers)
    has_bias = config.flag("attention_bias", False)
    return replace(
        decoder_from_hf("qwen3", config, sizes=sizes, extents=extents),
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias, has_head_norms=True),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "qwen3."."""
    return replace(
        decoder_from_gguf("qwen3", metadata, shapes, factors),
        attention=AttentionForm(has_head_norms=True),
    )
