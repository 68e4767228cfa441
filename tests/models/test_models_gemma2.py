"""Gemma 2's configuration: caps that are named, absent or off."""

from __future__ import annotations

from typing import Any

import pytest

from architectures import COMMON
from cutaway.models import gemma2
from cutaway.models.parts.config_fields import Fields

ABSENT: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("given", "cap"),
    [(ABSENT, 50.0), ({"": None}, None), ({"": 0}, None), ({"": 0.0}, None), ({"": 7}, 7.0)],
)
def test_j03_a_cap_of_null_or_nothing_is_off(given: dict[str, Any], cap: float | None) -> None:
    """Off is no cap at all: a cap of 0 would make every score 0."""
    caps = {f"attn_logit_softcapping{end}": value for end, value in given.items()}
    model = gemma2.from_hf(Fields({**COMMON, **caps}, file="config.json")).build()
    assert {block.attention.cap for block in model.blocks} == {cap}


@pytest.mark.parametrize(("given", "cap"), [(ABSENT, 30.0), ({"": None}, None), ({"": 0}, None)])
def test_j03_logits_are_capped_alike(given: dict[str, Any], cap: float | None) -> None:
    caps = {f"final_logit_softcapping{end}": value for end, value in given.items()}
    model = gemma2.from_hf(Fields({**COMMON, **caps}, file="config.json")).build()
    assert model.unembedding.cap == cap
