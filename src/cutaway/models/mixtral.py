"""Mixtral: Llama's attention, and in every layer experts of which a token uses the best two.

Source: Jiang et al. 2024, arXiv 2401.04088.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes, SoftmaxExperts
from cutaway.models.parts.extents import window_in_all
from cutaway.models.parts.grouped_decoder import (
    IN_GGUF,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config)
    extents = window_in_all(config, sizes.num_layers)
    made = decoder_from_hf("mixtral", config, sizes=sizes, extents=extents, base=1e6)
    experts = ExpertSizes.read(
        config, "num_local_experts", "num_experts_per_tok", sizes.inner, default=2
    )
    return _mixtral(made, experts)


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "llama.": the file calls it one."""
    made = decoder_from_gguf("mixtral", metadata, shapes, factors)
    inner = made.sizes.inner
    experts = ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner)
    return replace(_mixtral(made, experts), interleaved=IN_GGUF)


def _mixtral(made: GroupedDecoder, experts: ExpertSizes) -> GroupedDecoder:
    sparse = SoftmaxExperts(
        experts, made.gate, True, module="block_sparse_moe.", projections=("w1", "w3", "w2")
    )
    return replace(made, sparse=sparse, sparse_layers=frozenset(range(made.sizes.num_layers)))
