"""OLMoE: Llama's shape with queries and keys normed as whole rows, and experts in every layer.

Source: Muennighoff et al. 2024, arXiv 2409.02060.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes, SoftmaxExperts
from cutaway.models.parts.grouped_decoder import GroupedDecoder, decoder_from_gguf, decoder_from_hf
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, epsilon=("rms_norm_eps", 1e-5))
    has_bias = config.flag("attention_bias", False)
    count = "num_experts" if config.has("num_experts") else "num_local_experts"
    experts = ExpertSizes.read(config, count, "num_experts_per_tok", sizes.inner, default=8)
    return _olmoe(
        decoder_from_hf("olmoe", config, sizes=sizes),
        AttentionForm(
            has_bias=has_bias, has_output_bias=has_bias, clip=config.number_or_none("clip_qkv")
        ),
        experts,
        is_renormalized=config.flag("norm_topk_prob", False),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "olmoe.".

    The format has no word for norm_topk_prob; the published model does not set it.
    """
    made = decoder_from_gguf("olmoe", metadata, shapes, factors)
    experts = ExpertSizes.read(metadata, "expert_count", "expert_used_count", made.sizes.inner)
    form = AttentionForm(clip=metadata.number_or_none("attention.clamp_kqv"))
    return _olmoe(made, form, experts, is_renormalized=False)


def _olmoe(
    made: GroupedDecoder, attention: AttentionForm, experts: ExpertSizes, *, is_renormalized: bool
) -> GroupedDecoder:
    """What both layouts mean."""
    return replace(
        made,
        attention=replace(attention, has_head_norms=True, norms_rows=True),
        sparse=SoftmaxExperts(experts, made.gate, is_renormalized),
        sparse_layers=frozenset(range(made.sizes.num_layers)),
    )
