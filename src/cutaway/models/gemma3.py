"""Gemma 3, its text: sandwich norms, normed heads, five windows to one full layer, two bases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cutaway.blocks.positions import Plain
from cutaway.models.parts import rotary_config
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import (
    FULL_LAYER,
    WINDOW_LAYER,
    extents_of,
    layer_kinds,
    refuse_bidirectional,
    window_width,
)
from cutaway.models.parts.grouped_decoder import (
    SANDWICH,
    GroupedDecoder,
    decoder_from_gguf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import Sizes, sizes_from_hf

if TYPE_CHECKING:
    from cutaway.blocks.positions import Frequencies

_PERIOD = 6  # every sixth layer sees all
_LOCAL_BASE, _GLOBAL_BASE = 10_000.0, 1_000_000.0


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json, or the text_config of a model that also sees."""
    refuse_bidirectional(config)
    sizes = sizes_from_hf(config, is_tied=True, head_size=256)
    period = config.integer("sliding_window_pattern", _PERIOD)
    kinds = layer_kinds(config, sizes.num_layers, is_window=lambda i: (i + 1) % period != 0)
    has_bias = config.flag("attention_bias", False)
    attention = AttentionForm(
        has_bias=has_bias,
        has_output_bias=has_bias,
        has_head_norms=True,
        softmax_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )
    return _gemma3(
        sizes,
        kinds,
        _frequencies_from_hf(config, sizes),
        attention,
        window=window_width(config, "sliding_window"),
        gate=activation_name(config, "hidden_activation", "gelu_pytorch_tanh"),
        logits_cap=config.number_or_none("final_logit_softcapping"),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "gemma3."."""
    plain = decoder_from_gguf("gemma3", metadata, shapes, factors, base=_GLOBAL_BASE)
    sizes = plain.sizes
    kinds = layer_kinds(metadata, sizes.num_layers, is_window=lambda i: (i + 1) % _PERIOD != 0)
    near = Plain(sizes.head_size, metadata.number("rope.freq_base_swa", _LOCAL_BASE))
    # The file does not say the scale: 27B alone, of 62 layers, divides by width per head.
    is_27b = sizes.num_layers == 62
    scalar = sizes.width // sizes.num_heads if is_27b else sizes.head_size
    return _gemma3(
        sizes,
        kinds,
        {FULL_LAYER: plain.frequencies[0], WINDOW_LAYER: near},
        AttentionForm(has_head_norms=True, softmax_scale=scalar**-0.5),
        window=window_width(metadata, "attention.sliding_window"),
        gate="gelu_tanh",
        logits_cap=metadata.number_or_none("final_logit_softcapping"),
    )


def _gemma3(
    sizes: Sizes,
    kinds: tuple[str, ...],
    frequencies: Mapping[str, Frequencies | None],
    attention: AttentionForm,
    *,
    window: int | None,
    gate: str,
    logits_cap: float | None,
) -> GroupedDecoder:
    """What both layouts mean. frequencies: by kind of layer."""
    return GroupedDecoder(
        architecture="gemma3",
        sizes=sizes,
        frequencies=tuple(frequencies[kind] for kind in kinds),
        extents=extents_of(kinds, window),
        gate=gate,
        attention=attention,
        norms_at="around",
        norm="offset",
        multiplier=math.sqrt(sizes.width),
        logits_cap=logits_cap,
        names=SANDWICH,
    )


def _frequencies_from_hf(config: Fields, sizes: Sizes) -> dict[str, Frequencies | None]:
    """Of full layers by rope_theta and its scaling, of windows by rope_local_base_freq."""
    size, length = sizes.head_size, sizes.max_length
    far = rotary_config.from_hf(
        config, head_size=size, max_length=length, kind=FULL_LAYER, base=_GLOBAL_BASE
    )
    if config.read_mapping("rope_parameters").has(WINDOW_LAYER):
        near = rotary_config.from_hf(
            config, head_size=size, max_length=length, kind=WINDOW_LAYER, base=_LOCAL_BASE
        )
    else:
        near = Plain(size, config.number("rope_local_base_freq", _LOCAL_BASE))
    return {FULL_LAYER: far, WINDOW_LAYER: near if far is not None else None}
