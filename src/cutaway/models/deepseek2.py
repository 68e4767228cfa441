"""DeepSeek V2, V3 and R1 in GGUF, where all are called deepseek2 and fields tell them apart.

Source: llama.cpp's converter, DeepseekV2Model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cutaway.blocks.positions import Frequencies, Yarn
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.models.parts import rotary_config
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.deepseek import Deepseek, groups_of
from cutaway.models.parts.expert_layers import ExpertSizes
from cutaway.models.parts.latent_layers import LatentSizes
from cutaway.models.parts.sizes import sizes_from_gguf

if TYPE_CHECKING:
    from cutaway.blocks.router import Rule

_SOFTMAX, _SIGMOID = 1, 2  # expert_gating_func


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> Deepseek:
    """Read GGUF metadata, its fields without the prefix "deepseek2."."""
    sizes = sizes_from_gguf(metadata, shapes)
    frequencies = _frequencies(metadata, sizes.max_length, factors)
    attention = _latent(metadata, sizes.width, frequencies)
    has_correction = any(name.endswith("exp_probs_b.bias") for name in shapes)
    sparse = ExpertSizes.read(
        metadata,
        "expert_count",
        "expert_used_count",
        metadata.integer("expert_feed_forward_length"),
    )
    rule = _rule(metadata, sparse, has_correction=has_correction)
    return Deepseek(
        architecture="deepseek_v3" if has_correction else "deepseek_v2",
        # The file counts one group for absorbed attention.
        sizes=replace(sizes, num_groups=sizes.num_heads, head_size=attention.head_size),
        attention=attention,
        frequencies=frequencies,
        pairs="neighbours",
        experts=sparse,
        num_shared=metadata.integer("expert_shared_count", 0, least=0),
        num_dense=metadata.integer("leading_dense_block_count", 0, least=0),
        num_predicting=0,
        gate="silu",
        has_mlp_bias=False,
        has_correction=has_correction,
        make_rule=rule,
    )


def _latent(metadata: Fields, width: int, frequencies: Frequencies) -> LatentSizes:
    """Newer files have sizes of absorbed heads, and of expanded ones under names with _mla."""
    key_size, value_size = (
        metadata.integer(f"attention.{name}_mla", metadata.integer(f"attention.{name}"))
        for name in ("key_length", "value_length")
    )
    rotary_size = metadata.integer("rope.dimension_count")
    if rotary_size >= key_size:
        raise ModelFormatError(
            f"is {rotary_size}; it must be below the size of a key, {key_size}.",
            file=metadata.file,
            field="rope.dimension_count",
        )
    return LatentSizes(
        width=width,
        num_heads=metadata.integer("attention.head_count"),
        query_rank=metadata.integer("attention.q_lora_rank")
        if metadata.has("attention.q_lora_rank")
        else None,
        rank=metadata.integer("attention.kv_lora_rank"),
        plain_size=key_size - rotary_size,
        rotary_size=rotary_size,
        value_size=value_size,
        softmax_scale=key_size**-0.5 * _stretch(metadata, frequencies) ** 2,
        has_bias=False,
    )


def _frequencies(
    metadata: Fields, max_length: int, factors: Mapping[str, tuple[float, ...]]
) -> Frequencies:
    size = metadata.integer("rope.dimension_count")
    made = rotary_config.from_gguf(metadata, head_size=size, max_length=max_length, factors=factors)
    # The file does not say mscale: in published models it equals mscale_all_dim, so that the
    # scores' scale has all of it and cosines none.
    return replace(made, attention_factor=1.0) if isinstance(made, Yarn) else made


def _stretch(metadata: Fields, frequencies: Frequencies) -> float:
    """What YaRN does to queries and to keys: 0.1 mscale_all_dim is the file's multiplier."""
    multiplier = metadata.number_or_none("rope.scaling.yarn_log_multiplier")
    if not isinstance(frequencies, Yarn) or multiplier is None or frequencies.factor <= 1:
        return 1.0
    return multiplier * math.log(frequencies.factor) + 1.0


def _rule(metadata: Fields, sizes: ExpertSizes, *, has_correction: bool) -> Callable[[], Rule]:
    """How experts are chosen. Raises: UnsupportedModelError for what no DeepSeek model does."""
    function = metadata.integer("expert_gating_func", _SOFTMAX, least=0) or _SOFTMAX
    norm = metadata.flag("expert_weights_norm", False)
    scale = metadata.number_or_none("expert_weights_scale") or 1.0
    if function != (_SIGMOID if has_correction else _SOFTMAX):
        raise UnsupportedModelError(
            f"{metadata.file}: expert_gating_func is {function} and tensors have "
            f"{'a' if has_correction else 'no'} correction of the choice; softmax ({_SOFTMAX}) "
            f"without one and sigmoid ({_SIGMOID}) with one are supported."
        )
    groups = groups_of(
        metadata,
        sizes,
        names=("expert_group_count", "expert_group_used_count"),
        num_counted=2 if has_correction else 1,
    )
    if norm and not has_correction and groups.num_groups > 1:
        raise UnsupportedModelError(
            f"{metadata.file}: expert_weights_norm is true; a DeepSeek V2 model has false."
        )

    def make_rule() -> Rule:
        from cutaway.blocks import router

        if has_correction:
            return router.CorrectedSigmoid(
                sizes.num_experts,
                num_chosen=sizes.num_chosen,
                groups=router.ExpertGroups(*groups),
                is_renormalized=norm,
                multiplier=scale,
            )
        if groups.num_groups == 1:
            return router.SoftmaxThenTop(sizes.num_chosen, is_renormalized=norm, multiplier=scale)
        return router.GroupedSoftmaxThenTop(sizes.num_chosen, router.ExpertGroups(*groups), scale)

    return make_rule
