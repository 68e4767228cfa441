"""Qwen2 with experts: Qwen2's attention, and experts beside a gated layer for every token.

Source: Qwen2, arXiv 2407.10671; transformers' Qwen2MoeModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import (
    ExpertSizes,
    SharedExperts,
    has_experts,
    sparse_layers,
)
from cutaway.models.parts.extents import qwen_extents
from cutaway.models.parts.grouped_decoder import GroupedDecoder, decoder_from_gguf, decoder_from_hf
from cutaway.models.parts.layer_parts import AttentionForm
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


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "qwen2moe.".

    The format has no word for norm_topk_prob; no published model sets it. Older files do not say
    how wide experts and the shared layer are: their tensors do.
    """
    made = decoder_from_gguf("qwen2_moe", metadata, shapes, factors)
    layers = frozenset(i for i in range(made.sizes.num_layers) if has_experts(shapes, i))
    at = f"blk.{min(layers, default=0)}.ffn_"
    inner, shared = (
        metadata.integer(name, shapes.get(f"{at}{tensor}.weight", (0,))[-1])
        for name, tensor in (
            ("expert_feed_forward_length", "down_exps"),
            ("expert_shared_feed_forward_length", "down_shexp"),
        )
    )
    experts = ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner)
    has_gate_row = len(shapes.get(f"{at}gate_inp_shexp.weight", ())) == 2
    return replace(
        made,
        attention=AttentionForm(has_bias="blk.0.attn_q.bias" in shapes),
        sparse=SharedExperts(experts, made.gate, False, shared, has_gate_row=has_gate_row),
        sparse_layers=layers,
    )
