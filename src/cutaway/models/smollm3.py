"""SmolLM3: Llama's shape, and every few layers one whose queries and keys are not turned.

Source: transformers' SmolLM3Model; Yang et al. 2025, arXiv 2501.18795 (layers without positions).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from cutaway.core.errors import ModelFormatError
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import extents_of, layer_kinds, window_width
from cutaway.models.parts.grouped_decoder import (
    IN_GGUF,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf

_INTERVAL = 4  # every fourth layer has no positions


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, is_tied=True)
    has_window = config.flag("use_sliding_window", False)
    kinds = layer_kinds(config, sizes.num_layers, is_window=lambda _: has_window)
    width = window_width(config, "sliding_window") if has_window else None
    made = decoder_from_hf(
        "smollm3", config, sizes=sizes, extents=extents_of(kinds, width), base=2e6
    )
    has_bias = config.flag("attention_bias", False)
    return replace(
        _without_positions(made, _layers_without_positions(config, sizes.num_layers)),
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
        has_mlp_bias=config.flag("mlp_bias", False),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "smollm3.".

    It has no word for the layers without positions: they are those of the published model.
    """
    made = replace(decoder_from_gguf("smollm3", metadata, shapes, factors), interleaved=IN_GGUF)
    return _without_positions(made, range(_INTERVAL - 1, made.sizes.num_layers, _INTERVAL))


def _without_positions(made: GroupedDecoder, layers: Container[int]) -> GroupedDecoder:
    turning = enumerate(made.frequencies)
    return replace(
        made, frequencies=tuple(None if layer in layers else each for layer, each in turning)
    )


def _layers_without_positions(config: Fields, num_layers: int) -> Container[int]:
    """By no_rope_layers, which has a 0 for each of them and a 1 for others, or by an interval."""
    turns = config.integers("no_rope_layers")
    if not turns:
        interval = config.integer("no_rope_layer_interval", _INTERVAL)
        return range(interval - 1, num_layers, interval)
    if len(turns) != num_layers or not set(turns) <= {0, 1}:
        raise ModelFormatError(
            f"has {len(turns)} entries; it must have a 0 or a 1 for each of {num_layers} layers.",
            file=config.file,
            field="no_rope_layers",
        )
    return {layer for layer, turn in enumerate(turns) if turn == 0}
