"""OLMo 1: Llama's form with norms that have no weights, and attention clipped if asked.

Source: Groeneveld et al. 2024, arXiv 2402.00838.
"""

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
from cutaway.models.parts.sizes import sizes_from_gguf, sizes_from_hf

_EPSILON = 1e-5  # no config.json says it


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = replace(sizes_from_hf(config), epsilon=_EPSILON)
    has_bias = config.flag("attention_bias", False)
    clip = config.number_or_none("clip_qkv")
    form = AttentionForm(has_bias=has_bias, has_output_bias=has_bias, clip=clip)
    return replace(decoder_from_hf("olmo", config, sizes=sizes), attention=form, norm="bare")


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "olmo."."""
    sizes = sizes_from_gguf(metadata, shapes, epsilon="attention.layer_norm_epsilon")
    made = decoder_from_gguf("olmo", metadata, shapes, factors, sizes=sizes)
    form = AttentionForm(clip=metadata.number_or_none("attention.clamp_kqv"))
    return replace(made, attention=form, norm="bare", interleaved=IN_GGUF)
