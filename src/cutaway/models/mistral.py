"""Mistral: Llama's shape with a window over the last tokens in every layer.

In GGUF files it is called llama, without its window.
"""

from __future__ import annotations

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.extents import window_in_all
from cutaway.models.parts.grouped_decoder import GroupedDecoder, decoder_from_hf
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config)
    extents = window_in_all(config, sizes.num_layers)
    return decoder_from_hf("mistral", config, sizes=sizes, extents=extents)
