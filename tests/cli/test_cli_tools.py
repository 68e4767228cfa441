"""The calculator and the date of `cutaway chat`, and the line that calls them."""

from __future__ import annotations

from datetime import date
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli.repl.local_tools import (
    CallFinder,
    LineCall,
    calculate,
    examples,
    result_message,
    run_call,
)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+2", 4),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * -4", -20),
        ("7 // 2 + 7 % 2", 4),
        ("1 / 4", 0.25),
        ("2 ** 10", 1024),
        ("2^10", 1024),
        ("6 × 7 ÷ 2", 21.0),  # noqa: RUF001
        ("+1.5e3", 1500.0),
        ("2 ** -1", 0.5),
        ("2 ** 0.5", 2**0.5),
        ("  12  ", 12),
    ],
)
def test_arithmetic_is_computed(expression: str, value: float) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "the power is too large"),
        ("2 ** 100000", "the power is too large"),
        ("(2 ** 4000) * (2 ** 4000)", "the result is too large"),
        ("1e308 * 10", "the result is no finite number"),
        ("10.0 ** 400", "the result is too large"),
        ("(-8) ** 0.5", "a root of a negative number"),
        ("1 if 2 else 3", "is no arithmetic"),
        ("__import__('os').system('true')", "is no arithmetic"),
        ("().__class__", "is no arithmetic"),
        ("True + 1", "True is no arithmetic"),
        ("1 << 5", "1 << 5 is no arithmetic"),
        ("'a' * 9", "'a' is no arithmetic"),
        ("2j", "2j is no arithmetic"),
        ("two plus two", "is no arithmetic"),
        ("", "is no arithmetic"),
        ("1" + "+1" * 100, "more than 200 characters"),
        ("(" * 199, "is no arithmetic"),
        ("\0", "is no arithmetic"),
    ],
)
def test_what_is_no_arithmetic_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        calculate(expression)


@given(st.text(alphabet="0123456789+-*/%(). e^", max_size=60))
def test_any_text_gives_a_number_or_a_value_error_at_once(expression: str) -> None:
    began = perf_counter()
    try:
        value = calculate(expression)
    except ValueError:
        return
    assert isinstance(value, int | float)
    assert len(str(value)) < 2000
    assert perf_counter() - began < 60, "a bound on work, not a measure of speed"


def find_call(text: str, *, is_finished: bool) -> LineCall | None:
    return CallFinder().push(text, is_finished=is_finished)


def test_a_call_is_found_when_its_line_is_whole() -> None:
    finder = CallFinder()
    found = [finder.push(char, is_finished=False) for char in "TOOL calc: 1\nTOOL date:\n"]
    call = LineCall("calc", "1", end=12)
    assert found == [None] * 12 + [call] * 12, "later calls are not looked at"


def test_a_whole_line_is_a_call() -> None:
    text = "Let me see.\nTOOL calc: 12*34\nThe answer"
    call = find_call(text, is_finished=False)
    assert call == LineCall("calc", "12*34", end=text.index("\nThe"))


def test_a_line_that_may_go_on_is_no_call_until_the_answer_ends() -> None:
    assert find_call("TOOL calc: 12", is_finished=False) is None
    assert find_call("TOOL calc: 12", is_finished=True) == LineCall("calc", "12", end=13)


@pytest.mark.parametrize(
    "text", ["Use TOOL calc: 1 like this\n", "TOOL: 1\n", "tool calc: 1\n", "TOOL calc 1\n", ""]
)
def test_what_is_no_line_of_that_form_is_no_call(text: str) -> None:
    assert find_call(text, is_finished=True) is None


def test_a_call_does_not_reach_into_the_next_line() -> None:
    assert find_call("TOOL date:\nmore\n", is_finished=True) == LineCall("date", "", end=10)


@pytest.mark.parametrize(
    ("name", "argument", "result"),
    [
        ("calc", "2+2", "4"),
        ("calc", "1/0", "error: division by zero"),
        ("date", "", "Monday, 2026-03-02"),
        ("shell", "ls", "error: there is no tool shell; there are calc and date"),
    ],
)
def test_a_tool_answers_in_one_line_whatever_was_asked(
    name: str, argument: str, result: str
) -> None:
    assert run_call(LineCall(name, argument, 0), today=lambda: date(2026, 3, 2)) == result


def test_the_examples_are_what_the_tools_would_do() -> None:
    pairs = examples(today=lambda: date(2026, 3, 2))
    num_calls = 0
    for (_, answer), (following, _) in pairwise(pairs):
        call = find_call(answer, is_finished=True)
        if call is not None:
            result = run_call(call, today=lambda: date(2026, 3, 2))
            assert following == result_message(call, result)
            num_calls += 1
    assert num_calls == 4
