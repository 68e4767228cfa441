"""GLM-4 of 2025: Llama's shape with norms around, half of each head turns in pairs of neighbours.

Source: transformers' Glm4Model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.grouped_decoder import (
    IN_BOTH,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf
from cutaway.models.parts.tensor_names import GGUF, HF, Names

_NAMES: Mapping[Layout, Names] = {
    "hf": {
        **HF,
        "attention_after_norm": "post_self_attn_layernorm",
        "mlp_after_norm": "post_mlp_layernorm",
    },
    "gguf": GGUF,
}


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, head_size=128, epsilon=("rms_norm_eps", 1.5625e-7))
    made = decoder_from_hf("glm4", config, sizes=sizes, share=0.5)
    return _glm4(made, AttentionForm(has_bias=config.flag("attention_bias", True)))


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "glm4."."""
    made = decoder_from_gguf("glm4", metadata, shapes, factors)
    return _glm4(made, AttentionForm(has_bias="blk.0.attn_q.bias" in shapes))


def _glm4(made: GroupedDecoder, form: AttentionForm) -> GroupedDecoder:
    """What both layouts mean."""
    return replace(
        made,
        attention=form,
        has_joined_gate=True,
        norms_at="around",
        names=_NAMES,
        interleaved=IN_BOTH,
    )
