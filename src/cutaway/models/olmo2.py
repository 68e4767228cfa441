"""OLMo 2 and 3: norms behind attention and feed-forward, queries and keys normed as whole rows.

Source: OLMo team 2025, arXiv 2501.00656; OLMo 3 adds windows, whose layers turn unscaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.blocks.positions import Frequencies, Plain
from cutaway.models.parts import rotary_config
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import (
    FULL_LAYER,
    WINDOW_LAYER,
    extents_of,
    layer_kinds,
    window_width,
)
from cutaway.models.parts.grouped_decoder import (
    SANDWICH,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf

_PERIOD = 4  # every fourth layer of a model with windows sees all
_BASE = 500_000.0  # of such a model


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, epsilon=("rms_norm_eps", 1e-5))
    width = window_width(config, "sliding_window")
    base = 10_000.0 if width is None else _BASE
    has_bias = config.flag("attention_bias", False)
    made = _olmo2(
        decoder_from_hf("olmo2", config, sizes=sizes, kind=FULL_LAYER, base=base),
        AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
    )
    if width is None:
        return made
    if config.read_mapping("rope_parameters").has(WINDOW_LAYER):
        size, length = sizes.head_size, sizes.max_length
        near = rotary_config.from_hf(
            config, head_size=size, max_length=length, kind=WINDOW_LAYER, base=base
        )
    else:
        near = Plain(sizes.head_size, config.number("rope_theta", base))
    kinds = layer_kinds(config, sizes.num_layers, is_window=_is_window)
    return _with_windows(made, kinds, width, near)


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "olmo2.": OLMo 3 has windows there."""
    made = _olmo2(decoder_from_gguf("olmo2", metadata, shapes, factors), AttentionForm())
    width = window_width(metadata, "attention.sliding_window")
    if width is None:
        return made
    name, count = "attention.sliding_window_pattern", made.sizes.num_layers
    windows = map(_is_window, range(count))
    if metadata.has(name):
        windows = metadata.flags(name, count)
    kinds = tuple(WINDOW_LAYER if is_window else FULL_LAYER for is_window in windows)
    near = Plain(made.sizes.head_size, metadata.number("rope.freq_base", _BASE))
    return _with_windows(made, kinds, width, near)


def _is_window(layer: int) -> bool:
    return (layer + 1) % _PERIOD != 0


def _olmo2(made: GroupedDecoder, attention: AttentionForm) -> GroupedDecoder:
    """What both layouts mean."""
    return replace(
        made,
        attention=replace(attention, has_head_norms=True, norms_rows=True),
        norm="wide",
        norms_at="after",
        names=SANDWICH,
    )


def _with_windows(
    made: GroupedDecoder, kinds: tuple[str, ...], width: int, near: Frequencies | None
) -> GroupedDecoder:
    """near: how layers with a window turn."""
    layers = zip(kinds, made.frequencies, strict=True)
    return replace(
        made,
        extents=extents_of(kinds, width),
        frequencies=tuple(near if kind == WINDOW_LAYER and far else far for kind, far in layers),
    )
