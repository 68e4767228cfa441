"""DeepSeek V2: latent attention, and experts chosen by softmax, some of them by groups.

Source: DeepSeek-AI 2024, arXiv 2405.04434.
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

METHODS = ("greedy", "group_limited_greedy")


def from_hf(config: Fields) -> Deepseek:
    """Read a config.json.

    Raises: UnsupportedModelError for a choice that transformers does not have either.
    """
    method = config.text("topk_method", "greedy")
    if method not in METHODS:
        raise UnsupportedModelError(
            f"{config.file}: topk_method is {quote(method)}; known are {', '.join(METHODS)}."
        )
    if config.flag("norm_topk_prob", False):
        raise UnsupportedModelError(
            f"{config.file}: norm_topk_prob is true; a DeepSeek V2 model has false."
        )
    multiplier = config.number("routed_scaling_factor", 1.0)
    groups = read_groups(config, num_counted=1) if method != "greedy" else None

    def make_rule(sizes: ExpertSizes) -> Rule:
        from cutaway.blocks.router import ExpertGroups, GroupedSoftmaxThenTop, SoftmaxThenTop

        if groups is not None:
            return GroupedSoftmaxThenTop(sizes.num_chosen, ExpertGroups(*groups), multiplier)
        return SoftmaxThenTop(sizes.num_chosen, is_renormalized=False, multiplier=multiplier)

    return read_deepseek(
        config, "deepseek_v2", pairs="neighbours", make_rule=make_rule, has_correction=False
    )
