"""Qwen2 and 2.5: biases on queries, keys and values, and a window in later layers if asked."""

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

_ATTENTION = AttentionForm(has_bias=True)


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config)
    extents = qwen_extents(config, sizes.num_layers)
    made = decoder_from_hf("qwen2", config, sizes=sizes, extents=extents)
    return replace(made, attention=_ATTENTION)


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "qwen2."."""
    return replace(decoder_from_gguf("qwen2", metadata, shapes, factors), attention=_ATTENTION)
