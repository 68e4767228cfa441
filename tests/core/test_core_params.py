"""Sampling parameters that a model recommends act as if they had been asked for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from cutaway.core.errors import RequestError
from cutaway.core.request import RECOMMENDED, FloatByModel, IntByModel, Request, SamplingParams

GIVEN: dict[str, Any] = {
    "stop": ["a", "b"],
    "stop_token_ids": (3,),
    "logit_bias": {5: 1},
    "seed": 7,
    "presence_penalty": 1,
}


@pytest.mark.parametrize(
    "recommended",
    [{}, {"temperature": 0.6, "top_k": 20}, dict.fromkeys(RECOMMENDED, 1), {"seed": 8}],
)
@pytest.mark.parametrize("given", [{}, GIVEN, {"temperature": 0, "top_k": 3}])
def test_what_is_recommended_acts_where_nothing_was_given(
    given: dict[str, Any], recommended: dict[str, Any]
) -> None:
    own = {name: value for name, value in recommended.items() if name in RECOMMENDED}
    before = SamplingParams(**given)
    chosen = before.on(recommended)
    assert chosen == SamplingParams(**{**own, **given})
    assert before == SamplingParams(**given), "what it is of stays"
    for each in fields(SamplingParams):
        assert not isinstance(getattr(chosen, each.name), FloatByModel | IntByModel)
    assert chosen.on(recommended) is chosen


def test_what_is_recommended_out_of_range_is_refused() -> None:
    with pytest.raises(RequestError, match="temperature is 9"):
        SamplingParams().on({"temperature": 9})


def test_a_request_s_numbers_are_plain() -> None:
    params = Request(request_id="a", prompt_token_ids=(1,), params=SamplingParams()).params
    assert params == SamplingParams()
    assert {type(getattr(params, name)) for name in RECOMMENDED} == {float, int}
