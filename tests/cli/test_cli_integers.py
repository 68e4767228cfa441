"""Integers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli.settings.integer_text import parse_integer, show_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("32K", 32768), ("32k", 32768), (" 4_096 ", 4096), ("-1", -1), ("1M", 2**20)],
)
def test_integers_take_a_factor_in_powers_of_1024(text: str, value: int) -> None:
    assert parse_integer(text) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_integer_is_read_as_it_is_written(value: int) -> None:
    assert parse_integer(str(value)) == value


@pytest.mark.parametrize(
    "text", ["", "K", "1.5K", "32KB", "0x10", "1e3", "\u0663", "9" * 30, "3 K"]
)
def test_what_is_no_integer_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="is no integer; write digits"):
        parse_integer(text)


def test_bytes_are_shown_in_the_unit_that_keeps_them_short() -> None:
    shown = [show_bytes(count) for count in (0, 1023, 1536, 98_362_432, 5 * 2**40)]
    assert shown == ["0 B", "1023 B", "1.5 KiB", "93.8 MiB", "5.0 TiB"]
