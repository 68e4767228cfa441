"""Qwen3 with experts: normed query and key heads, and experts in all layers or in some.

Source: Qwen3, arXiv 2505.09388.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import (
    ExpertSizes,
    SoftmaxExperts,
    has_experts,
    sparse_layers,
)
from cutaway.models.parts.extents import window_in_all
from cutaway.models.parts.grouped_decoder import (
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config)
    has_window = config.flag("use_sliding_window", False)
    extents = window_in_all(config, sizes.num_layers) if has_window else None
    made = decoder_from_hf("qwen3_moe", config, sizes=sizes, extents=extents)
    has_bias = config.flag("attention_bias", False)
    inner = config.integer("moe_intermediate_size")
    count = "num_experts" if config.has("num_experts") else "num_local_experts"
    experts = ExpertSizes.read(config, count, "num_experts_per_tok", inner, default=8)
    is_renormalized = config.flag("norm_topk_prob", False)
    return replace(
        made,
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias, has_head_norms=True),
        sparse=SoftmaxExperts(experts, made.gate, is_renormalized),
        sparse_layers=sparse_layers(config, sizes.num_layers),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "qwen3moe.".

    The format has no word for norm_topk_prob; all published models set it.
    """
    made = decoder_from_gguf("qwen3_moe", metadata, shapes, factors)
    inner = metadata.integer("expert_feed_forward_length")
    experts = ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner)
    layers = range(made.sizes.num_layers)
    return replace(
        made,
        attention=AttentionForm(has_head_norms=True),
        sparse=SoftmaxExperts(experts, made.gate, True),
        sparse_layers=frozenset(layer for layer in layers if has_experts(shapes, layer)),
    )
