"""Numbers in text of strangers: what is one, and that nothing else raises."""

from __future__ import annotations

import pytest

from cutaway.core.whole_numbers import whole_number

NO_NUMBERS = ("", " ", "-", "+5", " 5", "5 ", "5\n", "1_0", "²", "①", "٣", "५", "0x1", "1e3", "5.0")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), (str(2**63), 2**63)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", [*NO_NUMBERS, "9" * 20, "9" * 5000])
def test_anything_else_is_none(text: str) -> None:
    assert whole_number(text) is None
    assert whole_number(text, is_signed=True) is None


def test_a_minus_counts_where_it_may_stand() -> None:
    assert whole_number("-1") is None
    assert whole_number("-1", is_signed=True) == -1
