"""Settings that contradict each other: the reference's precedence, and a warning of both."""

from __future__ import annotations

import warnings

import pytest

from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.rotary_config import from_hf

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_theta": 500.0, "rope_type": "default"}


def test_n11_rope_scaling_wins_beside_rope_parameters() -> None:
    with pytest.warns(UserWarning, match="rope_scaling and rope_parameters"):
        both = from_hf(
            Fields({"rope_parameters": PLAIN, "rope_scaling": YARN}, file="config.json"),
            head_size=16,
            max_length=256,
        )
    alone = from_hf(
        Fields({"rope_scaling": YARN}, file="config.json"), head_size=16, max_length=256
    )
    assert both == alone and both is not None


@pytest.mark.parametrize("scaling", [None, {}])
def test_n11_nothing_contradicts_a_scaling_that_is_none(scaling: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = from_hf(
            Fields({"rope_parameters": PLAIN, "rope_scaling": scaling}, file="config.json"),
            head_size=16,
            max_length=256,
        )
    plain = from_hf(Fields({"rope_parameters": PLAIN}, file="x"), head_size=16, max_length=256)
    assert given == plain
