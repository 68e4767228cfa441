"""The ranges of fields as they are promised, written out a second time, and what messages show."""

from __future__ import annotations

import fractions
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cutaway.core import limits
from cutaway.core.errors import RequestError
from cutaway.core.limits import LIMITS, check, inside, plain_number, quote, shorten, similar

LONGEST = 9_223_372_036_854_775_807
# Kind, default, least, most: a change of one is a change for users, and is made here too.
RANGES: dict[str, tuple[str, object, float, float]] = {
    "temperature": ("float", 1.0, 0, 5),
    "top_k": ("int", 0, -1, 2_147_483_647),
    "top_p": ("float", 1.0, 0, 1),
    "min_p": ("float", 0.0, 0, 1),
    "repetition_penalty": ("above", 1.0, 0, 10),
    "presence_penalty": ("float", 0.0, -2, 2),
    "frequency_penalty": ("float", 0.0, -2, 2),
    "logit_bias": ("float", 0.0, -100, 100),
    "seed": ("int", None, -LONGEST - 1, LONGEST),
    "n": ("int", 1, 1, 128),
    "max_tokens": ("int", None, 0, LONGEST),
    "min_tokens": ("int", 0, 0, LONGEST),
    "logprobs": ("int", None, 0, 20),
    "prompt_logprobs": ("int", None, 0, 20),
    "max_pattern_size": ("int", 0, 0, 1024),
    "min_pattern_size": ("int", 0, 0, 1024),
    "min_count": ("int", 0, 0, 2_147_483_647),
    "timeout": ("above", None, 0, 604_800),
    "place": ("int", None, 0, 2_147_483_647),
    "top": ("int", None, 1, 1000),
    "view_bytes": ("int", None, 1, 268_435_456),
    "view_flops": ("int", None, 1, 20_000_000_000_000),
    "runs": ("int", 3, 1, 20),
    "price": ("float", None, 0, 1_000_000),
    "compare_tokens": ("int", None, 1, 2_147_483_647),
    "compare_bytes": ("int", None, 1, 1_073_741_824),
    "compare_flops": ("int", None, 1, 50_000_000_000_000),
    "merges": ("int", 100, 1, 300),
    "rate": ("float", 0.003, 0, 1),
    "beta": ("float", 0.05, 0, 100),
    "ignore_eos": ("bool", False, -math.inf, math.inf),
    "include_stop": ("bool", False, -math.inf, math.inf),
    "skip_special_tokens": ("bool", True, -math.inf, math.inf),
}


def test_every_range_is_the_promised_one() -> None:
    found = {
        name: ("above" if each.least_open else each.kind, each.default, each.least, each.most)
        for name, each in LIMITS.items()
    }
    assert found == RANGES
    assert all((found[name][1] is True) is (RANGES[name][1] is True) for name in RANGES)


def test_bounds_of_lists_and_texts_are_the_promised_ones() -> None:
    assert (limits.MAX_LEARN_BYTES, limits.MAX_VIEW_TEXT, limits.MAX_CHANGE) == (10**4, 10**4, 1000)
    assert (limits.MAX_STOP_STRINGS, limits.MAX_STOP_BYTES, limits.MAX_STOP_TOKENS) == (
        16,
        256,
        128,
    )
    assert (limits.MAX_LOGIT_BIAS, limits.MOST_PER_CORE) == (1024, 4)


@pytest.mark.parametrize("name", [name for name, (kind, *_) in RANGES.items() if kind != "bool"])
def test_both_ends_are_taken_and_what_lies_beyond_is_refused(name: str) -> None:
    kind, default, least, most = RANGES[name]
    step: Any = 1 if kind == "int" else 1e-6
    check(name, most)
    check(name, least + step if kind == "above" else least)
    refused: list[Any] = [least - step, most + step, True, "1", math.nan, [least]]
    refused += [least] if kind == "above" else []
    refused += [] if default is None else [None]
    refused += [float(least)] if kind == "int" else [10**400, -(10**400)]
    for value in refused:
        with pytest.raises(RequestError) as told:
            check(name, value, param="a.b")
        assert told.value.param == "a.b" and LIMITS[name].describe() in str(told.value)
    if default is None:
        check(name, None)


def test_a_bool_is_true_or_false_and_no_number() -> None:
    for value in (True, False):
        check("ignore_eos", value)
    for value in (0, 1, "true", None):
        with pytest.raises(RequestError, match=r"ignore_eos is .*; it must be true or false"):
            check("ignore_eos", value)


def test_numbers_of_other_libraries_become_pythons_own() -> None:
    for given, wanted in (
        *((np.int64(3), 3), (np.float32(0.5), 0.5), (np.uint8(255), 255)),
        (fractions.Fraction(1, 4), 0.25),
        *((True, True), (7, 7), (0.25, 0.25), ("x", "x"), (None, None)),
    ):
        found = plain_number(given)
        assert found == wanted and type(found) is type(wanted)
    other = object()
    assert plain_number(other) is other and plain_number(1j) == 1j


def test_a_value_in_a_message_is_short_visible_and_json_where_it_can_be() -> None:
    for value, shown in (
        *((True, "true"), (None, "null"), ("a", '"a"'), (b"a", "b'a'"), ([1, "x"], '[1, "x"]')),
        *((math.nan, "nan"), (math.inf, "inf"), (0.5, "0.5"), ("ä", '"ä"')),
        *(({1j: 2}, "{1j: 2}"), ({"a": 1j}, '{"a": "1j"}')),
        ("\x9b31m", '"\\u009b31m"'),
        (10**5000, "a number of thousands of digits"),
    ):
        assert quote(value) == shown
    long = quote("x" * 10**7)
    assert len(long) == 80 and long.endswith("x...")
    assert quote("x" * 78) == f'"{"x" * 78}"'  # 80 characters with its marks: whole
    assert quote("x" * 79) == f'"{"x" * 76}...'
    assert shorten("abcd", 4) == "abcd" and shorten("abcde", 4) == "a..."
    assert inside("a", "b") == "a.b" and len(inside("a", "b" * 999)) == 80


class Watched(list[Any]):
    """A list that counts how many of its items were looked at."""

    looked = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            type(self).looked += 1
            yield each


def test_no_more_of_a_value_is_written_than_is_shown() -> None:
    chance = random.Random(1)

    def drawn(depth: int) -> Any:
        kind = chance.choice("stlds" if depth else "st")
        if kind == "l":
            return [drawn(depth - 1) for _ in range(chance.randrange(6))]
        if kind == "d":
            return {"k" * chance.randrange(9) + str(i): drawn(depth - 1) for i in range(3)}
        return "x" * chance.choice((0, 1, 5, 90)) if kind == "s" else chance.choice((None, 7, 0.5))

    shown = [drawn(5) for _ in range(2000)]
    assert sum(len(json.dumps(value)) > 80 for value in shown) > 200
    for value in shown:
        assert quote(value) == shorten(json.dumps(value))
    Watched.looked = 0
    assert quote(Watched([{"a": 1}] * 10**6)).endswith("...")
    assert Watched.looked < 100


def test_a_name_of_any_length_is_compared_by_its_beginning() -> None:
    known = ("temperature", "top_p", "top_k")
    assert similar("temprature", known) == ["temperature"]
    assert sorted(similar("top_", known, most=2)) == ["top_k", "top_p"]
    assert similar("unknown", known) == []
    assert similar("z" * 10**6, known, cutoff=0.0) == similar("z" * 80, known, cutoff=0.0)
