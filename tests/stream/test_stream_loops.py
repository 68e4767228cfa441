"""An answer that repeats itself ends there: the same place as by looking at all of it each time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from cutaway.core.errors import RequestError
from cutaway.core.request import CHAT_DETECTION, RepetitionDetection, SamplingParams
from cutaway.stream.loops import RepetitionDetector
from cutaway.stream.text import TextStream

FIELD = "repetition_detection"


def wanted(most: int, least: int, count: int) -> RepetitionDetection:
    return RepetitionDetection(max_pattern_size=most, min_pattern_size=least, min_count=count)


def ends_in_a_pattern(token_ids: Sequence[int], asked: RepetitionDetection) -> bool:
    """As it is defined: some size at which the end is one pattern min_count times over."""
    for size in range(max(1, asked.min_pattern_size), asked.max_pattern_size + 1):
        end = list(token_ids[-size * asked.min_count :])
        if len(end) == size * asked.min_count and end == end[:size] * asked.min_count:
            return True
    return False


@pytest.mark.parametrize("setting", [(1, 0, 2), (3, 1, 3), (5, 2, 2), (7, 4, 2), (6, 6, 3)])
def test_it_ends_where_the_definition_says(setting: tuple[int, int, int]) -> None:
    asked, chance = wanted(*setting), Random(5)
    met = 0
    for _ in range(60):
        token_ids: list[int] = []
        while len(token_ids) < 60:  # parts that come again, and some that do not
            part = [chance.randrange(3) for _ in range(chance.randrange(1, 8))]
            token_ids += part * chance.randrange(1, 4)
        detector = RepetitionDetector(asked)
        found = [detector.push(each) for each in token_ids]
        looked = [ends_in_a_pattern(token_ids[:at], asked) for at in range(1, len(found) + 1)]
        assert found == looked
        met += any(found)
    assert 0 < met


def test_a_short_loop_is_found_as_a_longer_one() -> None:
    detector = RepetitionDetector(CHAT_DETECTION)
    found = [detector.push(each) for each in [7, 8, 9] * 40]
    assert found.index(True) == 18 * 4 - 1  # 18 is the least multiple of 3 from 16 on


def read(params: SamplingParams, token_ids: bytes) -> tuple[str, int, bool]:
    """Text, tokens until the end, and whether it repeated itself."""
    stream, text = TextStream(params, lambda each: bytes([each])), ""
    for count, token_id in enumerate(token_ids, 1):
        text += stream.advance(token_id)
        if stream.stopped_by is not None or stream.is_repeating:
            return text + stream.finish(), count, stream.is_repeating
    return text + stream.finish(), len(token_ids), False


def test_min_tokens_come_first_and_a_stop_string_tells_more() -> None:
    asked = {"max_pattern_size": 2, "min_count": 3}
    assert read(SamplingParams(repetition_detection=asked), b"xababab")[1:] == (7, True)
    later = SamplingParams(repetition_detection=asked, min_tokens=8)
    assert read(later, b"xabababab") == ("xabababab", 9, True)
    stopped = SamplingParams(repetition_detection=asked, stop=["bab"], include_stop=True)
    assert read(stopped, b"xababab") == ("xabab", 5, False)
    held = SamplingParams(repetition_detection=asked, stop=["ab!"])
    assert read(held, b"xababab") == ("xababab", 7, True), "what was withheld is shown"


def test_it_is_asked_for_by_object_fields_or_text() -> None:
    asked = wanted(64, 16, 4)
    assert asked == CHAT_DETECTION
    fields = {"max_pattern_size": 64, "min_pattern_size": 16, "min_count": 4}
    for given in (asked, fields, str(asked), " 16, 64, 4"):
        assert SamplingParams(repetition_detection=given).repetition_detection == asked
    for given in (None, "off", {"max_pattern_size": 0}):
        assert SamplingParams(repetition_detection=given).repetition_detection is None


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (True, FIELD),
        ([16, 64, 4], FIELD),
        ("16,64", FIELD),
        ("a,b,c", FIELD),
        ({}, FIELD),
        ({"max_pattern_size": 4, "min_count": 2, "more": 1}, FIELD),
        ({"max_pattern_size": 4}, f"{FIELD}.min_count"),
        ({"max_pattern_size": 4, "min_count": 1}, f"{FIELD}.min_count"),
        ({"max_pattern_size": 4, "min_count": 2.5}, f"{FIELD}.min_count"),
        ({"max_pattern_size": 1025, "min_count": 2}, f"{FIELD}.max_pattern_size"),
        ({"max_pattern_size": "4", "min_count": 2}, f"{FIELD}.max_pattern_size"),
        (
            {"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2},
            f"{FIELD}.min_pattern_size",
        ),
        (
            {"max_pattern_size": 4, "min_pattern_size": -1, "min_count": 2},
            f"{FIELD}.min_pattern_size",
        ),
    ],
)
def test_what_is_none_is_refused_by_name(given: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(repetition_detection=given)
    assert caught.value.param == param and param in str(caught.value)
