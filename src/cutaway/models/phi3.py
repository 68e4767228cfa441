"""Phi-3 and Phi-4: Llama's shape, its matrices joined, a part of each head turned by LongRoPE.

Source: Abdin et al. 2024, arXiv 2404.14219 and 2412.08905.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import WINDOW_LAYER, extents_of, window_in_all, window_width
from cutaway.models.parts.grouped_decoder import GroupedDecoder, decoder_from_gguf, decoder_from_hf
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf

_TRAINED_LENGTH = 4096


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    # As in transformers: what LongRoPE was trained on is this where the file does not say.
    config = config.with_default("original_max_position_embeddings", _TRAINED_LENGTH)
    sizes = sizes_from_hf(config, epsilon=("rms_norm_eps", 1e-5))
    extents = window_in_all(config, sizes.num_layers)
    made = decoder_from_hf("phi3", config, sizes=sizes, extents=extents)
    return replace(made, attention=AttentionForm(is_joined=True), has_joined_gate=True)


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "phi3."."""
    made = decoder_from_gguf("phi3", metadata, shapes, factors)
    kinds = (WINDOW_LAYER,) * made.sizes.num_layers
    return replace(
        made,
        attention=AttentionForm(is_joined="blk.0.attn_q.weight" not in shapes),
        extents=extents_of(kinds, window_width(metadata, "attention.sliding_window")),
        has_joined_gate="blk.0.ffn_gate.weight" not in shapes,
    )
