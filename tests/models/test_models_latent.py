"""Scales of latent attention as configurations say them: cases D09 and J05."""

from __future__ import annotations

from typing import Any

import pytest

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.latent_layers import latent_from_hf

CONFIG: dict[str, Any] = {
    **{"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 160},
    **{"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4},
}
YARN = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4}


def scale(**scaling: object) -> float:
    config = {**CONFIG, "rope_scaling": scaling} if scaling else CONFIG
    return latent_from_hf(Fields(config, file="config.json"))[0].softmax_scale


def test_j05_the_scale_is_of_a_whole_head_and_not_of_the_latent() -> None:
    assert scale() == pytest.approx((4 + 2) ** -0.5)


@pytest.mark.parametrize(("every", "factor"), [(1.0, 1.873854), (0.707, 1.589626), (0, 1.0)])
def test_d09_yarn_multiplies_the_softmax_scale_by_its_factor_twice(
    every: float, factor: float
) -> None:
    ratio = scale(**YARN, mscale=every, mscale_all_dim=every) / scale()
    assert ratio == pytest.approx(factor, abs=1e-6)


def test_d09_without_mscale_cosines_have_the_factor_and_the_scale_has_none() -> None:
    _, frequencies = latent_from_hf(Fields({**CONFIG, "rope_scaling": YARN}, file="config.json"))
    assert frequencies is not None
    assert frequencies.attention_factor == pytest.approx(1.368888, abs=1e-6)
    assert scale(**YARN) == scale()
