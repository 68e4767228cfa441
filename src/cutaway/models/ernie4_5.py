"""ERNIE 4.5, dense: Llama's shape, whose heads turn in pairs of neighbours.

Source: ERNIE team 2025, "ERNIE 4.5 technical report"; transformers' Ernie4_5Model.
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
    """Read a config.json: one flag says whether every matrix has a bias."""
    sizes = sizes_from_hf(config, is_tied=True, head_size=128, epsilon=("rms_norm_eps", 1e-5))
    made = decoder_from_hf("ernie4_5", config, sizes=sizes, base=500_000.0)
    return _ernie(made, has_bias=config.flag("use_bias", False))


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "ernie4_5."."""
    made = decoder_from_gguf("ernie4_5", metadata, shapes, factors, base=500_000.0)
    return _ernie(made, has_bias="blk.0.attn_q.bias" in shapes)


def _ernie(made: GroupedDecoder, *, has_bias: bool) -> GroupedDecoder:
    """What both layouts mean."""
    form = AttentionForm(has_bias=has_bias, has_output_bias=has_bias)
    return replace(made, attention=form, has_mlp_bias=has_bias, interleaved=IN_BOTH)
