"""GLM-4 of 2024, 9B and its kin: Llama's shape, half of each head turns in pairs of neighbours.

Source: GLM team 2024, arXiv 2406.12793; transformers' GlmModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.grouped_decoder import (
    IN_BOTH,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, head_size=128, epsilon=("rms_norm_eps", 1.5625e-7))
    made = decoder_from_hf("glm", config, sizes=sizes, share=0.5)
    form = AttentionForm(has_bias=config.flag("attention_bias", True))
    return replace(made, attention=form, has_joined_gate=True, interleaved=IN_BOTH)


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "chatglm.": one matrix makes all heads."""
    form = AttentionForm(has_bias="blk.0.attn_qkv.bias" in shapes, is_joined=True)
    if "blk.0.attn_q.weight" in shapes:
        form = AttentionForm(has_bias="blk.0.attn_q.bias" in shapes)
    made = decoder_from_gguf("glm", metadata, shapes, factors)
    return replace(made, attention=form, has_joined_gate=True, interleaved=IN_BOTH)
