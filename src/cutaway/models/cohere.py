"""Cohere's Command R and R7B: attention and feed-forward side by side behind one norm by mean.

Source: transformers' CohereModel and Cohere2Model; Command R7B has windows, and positions in those
layers alone (Yang et al. 2025, arXiv 2501.18795).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import WINDOW_LAYER, extents_of, layer_kinds, window_width
from cutaway.models.parts.grouped_decoder import (
    IN_BOTH,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_gguf, sizes_from_hf

_PERIOD = 4  # every fourth layer of a model with windows sees all
_LOGITS = 0.0625


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, is_tied=True, epsilon=("layer_norm_eps", 1e-5))
    has_bias = config.flag("attention_bias", False)
    form = AttentionForm(
        has_bias=has_bias,
        has_output_bias=has_bias,
        has_head_norms=config.flag("use_qk_norm", False),
    )
    made = decoder_from_hf("cohere", config, sizes=sizes)
    made = _cohere(made, form, config.number("logit_scale", _LOGITS))
    every = config.integer("sliding_window_pattern", _PERIOD)
    return _with_windows(made, config, "sliding_window", every)


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "command-r." or "cohere2."."""
    sizes = sizes_from_gguf(metadata, shapes, epsilon="attention.layer_norm_epsilon")
    form = AttentionForm(
        has_bias="blk.0.attn_q.bias" in shapes,
        has_output_bias="blk.0.attn_output.bias" in shapes,
        has_head_norms="blk.0.attn_q_norm.weight" in shapes,
    )
    made = decoder_from_gguf("cohere", metadata, shapes, factors, sizes=sizes)
    made = _cohere(made, form, metadata.number("logit_scale", _LOGITS))
    return _with_windows(made, metadata, "attention.sliding_window", _PERIOD)


def _cohere(made: GroupedDecoder, form: AttentionForm, multiplier: float) -> GroupedDecoder:
    """What both layouts mean. multiplier: of the logits."""
    return replace(
        made,
        attention=form,
        norm="mean",
        norms_at="shared",
        logits_multiplier=multiplier,
        interleaved=IN_BOTH,
    )


def _with_windows(made: GroupedDecoder, config: Fields, name: str, every: int) -> GroupedDecoder:
    """The same with windows if there are any: no other layer turns. name: of the width's field."""
    width = window_width(config, name)
    if width is None and not config.has("layer_types"):
        return made
    kinds = layer_kinds(
        config, made.sizes.num_layers, is_window=lambda layer: (layer + 1) % every != 0
    )
    layers = zip(kinds, made.frequencies, strict=True)
    return replace(
        made,
        extents=extents_of(kinds, width),
        frequencies=tuple(
            turn if width is not None and kind == WINDOW_LAYER else None for kind, turn in layers
        ),
    )
