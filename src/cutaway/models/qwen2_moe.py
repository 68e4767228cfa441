"""Qwen2 with experts: Qwen2's attention, and experts beside a gated layer for every token.

Source: Qwen2, arXiv 2407.10671; transformers' Qwen2MoeModel.
"""

from __future__ import annotations

from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes, SharedExperts, sparse_layers
from cutaway.models.parts.extents import qwen_extents
from cutaway.models.parts.grouped_decoder import AttentionForm, GroupedDecoder, decoder_from_hf
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config)
    extents = qwen_extents(config, sizes.num_layers)
    made = decoder_from_hf("qwen2_moe", config, sizes=sizes, extents=extents)
    inner = config.integer("moe_intermediate_size")
    count = "num_experts" if config.has("num_experts") else "num_local_experts"
    experts = ExpertSizes.read(config, count, "num_experts_per_tok", inner, default=4)
    return replace(
        made,
        attention=AttentionForm(has_bias=config.flag("qkv_bias", True)),
        sparse=SharedExperts(
            experts,
            made.gate,
            config.flag("norm_topk_prob", False),
            config.integer("shared_expert_intermediate_size"),
        ),
        sparse_layers=sparse_layers(config, sizes.num_layers),
    )
