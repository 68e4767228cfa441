"""Stop strings end the text at the same character for every way of cutting it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.stream.stop import StopStrings

TraceFunction = Callable[[FrameType, str, Any], Any]

STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), min_size=1, max_size=4)
TEXT = st.text(alphabet="ab\nc", max_size=24)
CUTS = st.lists(st.integers(0, 99), max_size=8)


def cut(text: str, borders: list[int]) -> list[str]:
    at = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[a:b] for a, b in itertools.pairwise(at)]


def run(
    stops: list[str], pieces: list[str], *, include_stop: bool = False
) -> tuple[list[str], str | None]:
    """What each piece gives until the text ends, and what ended it."""
    matcher = StopStrings(stops, include_stop=include_stop)
    shown: list[str] = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.stopped_by is not None:
            return shown, matcher.stopped_by
    return [*shown, matcher.finish()], None


def naive(stops: list[str], text: str, *, include_stop: bool = False) -> tuple[str, str | None]:
    """The same with the whole text at hand: the first to be complete, and of two the longer."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include_stop else end - len(stop)], stop


def withheld(stops: list[str], text: str) -> str:
    """The longest end of text that is a proper start of a stop string."""
    starts = {stop[:n] for stop in stops for n in range(len(stop))}
    return next(text[i:] for i in range(len(text) + 1) if text[i:] in starts)


@pytest.mark.parametrize(
    ("stop", "pieces", "shown"),
    [
        ("DEFGHIJ", ["DEF", "G", "HI", "J"], ["", "", "", ""]),
        ("own fox", ["The", " quick", " br", "own", " fox"], ["The", " quick", " br", "", ""]),
        ("own fox", ["The quick brown fox jumps"], ["The quick br"]),
        ("own fox", ["The quick bro", "wn f", "ox"], ["The quick br", "", ""]),
        ("aab", ["aa", "ab"], ["", "a"]),
        ("abab", ["aba", "bab"], ["", ""]),
    ],
)
def test_b05_a_stop_string_over_several_tokens_is_never_shown(
    stop: str, pieces: list[str], shown: list[str]
) -> None:
    assert run([stop], pieces) == (shown, stop)
    text = "".join(pieces)
    assert "".join(shown) == text[: text.find(stop)]


@given(stops=STOPS, text=TEXT, borders=CUTS, include_stop=st.booleans())
def test_b05_every_way_of_cutting_gives_what_the_whole_text_gives(
    stops: list[str], text: str, borders: list[int], include_stop: bool
) -> None:
    shown, stopped_by = run(stops, cut(text, borders), include_stop=include_stop)
    assert ("".join(shown), stopped_by) == naive(stops, text, include_stop=include_stop)


@given(stops=STOPS, text=TEXT, borders=CUTS)
def test_b06_withheld_is_exactly_what_may_still_become_a_stop_string(
    stops: list[str], text: str, borders: list[int]
) -> None:
    matcher = StopStrings(stops)
    so_far = shown = ""
    for piece in cut(text, borders):
        so_far += piece
        shown += matcher.push(piece)
        if matcher.stopped_by is not None:
            return
        assert matcher.held == withheld(stops, so_far)
        assert shown + matcher.held == so_far


def test_b06_a_piece_from_the_middle_of_a_stop_string_is_shown_at_once() -> None:
    assert run(["\n\nassistant"], ["ple", "as"]) == (["ple", "as", ""], None)


def test_b06_a_long_stop_string_that_never_comes_withholds_nothing() -> None:
    pieces = ["one ", "two ", "three"]
    assert run(["x" * 20], pieces) == ([*pieces, ""], None)


def test_b06_what_was_withheld_comes_when_it_can_no_longer_match() -> None:
    assert run(["stop"], ["a st", "ar", " st"]) == (["a ", "star", " ", "st"], None)


@pytest.mark.parametrize("include_stop", [False, True])
def test_b09_nothing_after_the_stop_string_is_shown(include_stop: bool) -> None:
    expected = " gamma" if include_stop else " "
    assert run(["gamma"], [" gamma delta"], include_stop=include_stop) == ([expected], "gamma")


def test_the_stop_string_that_is_complete_first_wins_and_of_two_the_longer() -> None:
    assert run(["abc", "b"], ["abc"]) == (["a"], "b")
    assert run(["bc", "abc"], ["xabc"]) == (["x"], "abc")
    assert run(["bc", "abc"], ["xbbc"]) == (["xb"], "bc")


def test_a_stop_string_that_was_passed_over_is_shown_and_may_begin_another() -> None:
    matcher = StopStrings(["aba"])
    assert matcher.push("xaba", may_stop=False) == "xab"
    assert (matcher.push("ba"), matcher.stopped_by) == ("", "aba")
    longer = StopStrings(["ab", "abc"])
    assert longer.push("ab", may_stop=False) == ""
    assert (longer.push("cd"), longer.stopped_by) == ("", "abc")


def test_text_without_stop_strings_passes_unchanged() -> None:
    matcher = StopStrings([])
    assert [matcher.push("a"), matcher.push(""), matcher.finish()] == ["a", "", ""]


def test_nothing_follows_a_stop_string() -> None:
    matcher = StopStrings(["a"])
    matcher.push("a")
    with pytest.raises(AssertionError, match="nothing follows"):
        matcher.push("b")
    assert matcher.finish() == ""


def test_work_per_character_does_not_grow_with_the_number_or_length_of_stop_strings() -> None:
    matcher = StopStrings([("a" * n) + "b" for n in range(1, 255)])
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for _ in range(20):
            for char in "a" * 250 + "c":
                matcher.push(char)
    finally:
        sys.settrace(before)
    assert lines <= 25 * 20 * 251
