"""A change as people write it: numbers in it that nobody means are refused, and nothing raises."""

from __future__ import annotations

import pytest

from cutaway.compare.levers import Change, change_of
from cutaway.core.errors import RequestError

NO_STEPS = ("", " ", "²", "①", "٣", "1_0", "-1", "+1", "1.0", "9" * 5000)


@pytest.mark.parametrize("step", NO_STEPS)
def test_a_step_that_is_no_number_is_refused(step: str) -> None:
    with pytest.raises(RequestError, match="by its step"):
        change_of(f"token@{step}=5")


def test_a_step_is_read() -> None:
    assert change_of("token@07=5") == Change("token", "5", 7)


@pytest.mark.parametrize("value", [*NO_STEPS, "8"])
def test_a_value_that_is_no_number_of_the_range_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match="whole number from 1 to 7"):
        Change("window", value).whole(least=1, most=7)
