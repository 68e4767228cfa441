"""What all views share: queries are checked, payloads are plain, drawings fit, styles are extra."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cutaway.core.errors import RequestError
from cutaway.views import VIEWS, view_of
from cutaway.views.parts.drawing import Drawing, Span, bar, columns, cut, strip
from cutaway.views.parts.payload import Array, as_json, split
from cutaway.views.parts.query import Query, query_of
from cutaway.views.parts.replay_values import Wanted
from cutaway.views.parts.subject import visible

BOUNDS = {"layer": 4, "head": 8, "top": 320}


def test_a_place_is_named_with_what_is_allowed() -> None:
    cases = {
        "layer is 4; it must be from 0 to 3": Query(layer=4),
        "head is -1; it must be from 0 to 7": Query(head=-1),
        "top is 0; it must be from 1 to 320": Query(top=0),
        "token is 2, but the view some takes layer, head, top": Query(token=2),
    }
    for words, query in cases.items():
        with pytest.raises(RequestError, match=words):
            query.check(("layer", "head", "top"), BOUNDS, view="some")
    Query(layer=3, head=7, top=320).check(("layer", "head", "top"), BOUNDS, view="some")


def test_values_of_another_type_are_refused() -> None:
    for values, words in (
        ({"layer": "x"}, 'layer is "x"; it must be a whole number'),
        ({"layer": True}, "layer is true"),
        ({"text": 3}, "text is 3; it must be text"),
        ({"depth": 3}, "depth is no field of a view: position, token"),
    ):
        with pytest.raises(RequestError, match=words):
            query_of(values)
    assert query_of({"layer": 2, "head": None}) == Query(layer=2)


def test_views_have_names_of_their_own_and_an_unknown_one_is_told_them() -> None:
    names = [view.name for view in VIEWS]
    assert len(set(names)) == len(names)
    with pytest.raises(RequestError, match=f'view is "x"; there are: {", ".join(names)}'):
        view_of("x")


def test_wants_join_to_the_least_that_covers_both() -> None:
    one = Wanted(taps=frozenset("a"), layers=frozenset({1}), start=3, end=5)
    two = Wanted(taps=frozenset("b"), layers=frozenset({2}), start=8, end=9)
    rows = Wanted(rows=frozenset({0}))
    both = one | two | rows
    assert (both.start, both.end, both.layers, both.rows) == (3, 9, {1, 2}, {0})
    assert both.covers(one) and both.covers(rows) and not one.covers(two)
    assert Wanted() | one == one and one.covers(Wanted())


@dataclass(frozen=True)
class Some:
    name: str
    values: Array
    parts: tuple[tuple[int, float], ...]

    def draw(self) -> Drawing:
        return Drawing()


def test_a_payload_is_plain_values_with_its_arrays_beside_or_inside() -> None:
    some = Some("x", np.array([1.0, np.nan], np.float32), ((1, float("inf")),))
    assert as_json(some) == {"name": "x", "values": [1.0, None], "parts": [[1, None]]}
    plain, arrays = split(some)
    assert plain == {"name": "x", "values": {"array": "values"}, "parts": [[1, None]]}
    assert list(arrays) == ["values"] and arrays["values"].dtype == np.float32


def test_drawings_align_wrap_and_count_columns() -> None:
    drawing = Drawing()
    drawing.table(
        ("name", "n"), [("a", "1"), (Span("\u5b57\u5b57\u5b57", "bad"), "22")], sides="lr"
    )
    assert drawing.text().splitlines() == ["name     n", "a        1", "\u5b57\u5b57\u5b57  22"]
    wrapped = Drawing()
    wrapped.wrap([Span("abc")] * 5, indent=2, width=9)
    assert wrapped.text().splitlines() == ["  abcabc", "  abcabc", "  abc"]
    assert (
        columns("e\u0301\u5b57") == 3 and cut("abcdef", 4) == "abc\u2026" and cut("abc", 4) == "abc"
    )
    assert bar(0.5, 4) == "\u2588\u2588  " and bar(2, 2) == "\u2588\u2588" and bar(0, 2) == "  "
    assert strip([0, 1, 2]) == " \u2584\u2588" and strip([0.0]) == " "


def test_every_character_of_a_token_shows() -> None:
    assert visible(b" a\n\t") == "\u00b7a\u21b5\u21e5"
    assert visible(b"\xff") == "\\xff" and visible("\u200b".encode()) == "\\u{200b}"
