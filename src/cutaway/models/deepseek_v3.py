"""DeepSeek V3 and R1: latent attention, and experts chosen by corrected sigmoids within groups.

Source: DeepSeek-AI 2024, arXiv 2412.19437.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.deepseek import Deepseek, read_deepseek, read_groups
from cutaway.models.parts.expert_layers import ExpertSizes

if TYPE_CHECKING:
    from cutaway.blocks.router import Rule


def from_hf(config: Fields) -> Deepseek:
    """Read a config.json.

    Raises: UnsupportedModelError for another scoring or choice than the published models'.
    """
    for field, known in (("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")):
        if config.text(field, known) != known:
            raise UnsupportedModelError(
                f"{config.file}: {field} is {quote(config.text(field))}; a DeepSeek V3 model has "
                f"{quote(known)}."
            )
    multiplier = config.number("routed_scaling_factor", 2.5)
    groups = read_groups(config, num_counted=2)
    is_renormalized = config.flag("norm_topk_prob", True)

    def make_rule(sizes: ExpertSizes) -> Rule:
        from cutaway.blocks.router import CorrectedSigmoid, ExpertGroups

        return CorrectedSigmoid(
            sizes.num_experts,
            num_chosen=sizes.num_chosen,
            groups=ExpertGroups(*groups),
            is_renormalized=is_renormalized,
            multiplier=multiplier,
        )

    return read_deepseek(
        config,
        "deepseek_v3",
        pairs="neighbours" if config.flag("rope_interleave", True) else "halves",
        make_rule=make_rule,
        has_correction=True,
    )
