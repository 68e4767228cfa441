"""Schemas without what asks for nothing, and faults by their path."""

from __future__ import annotations

from typing import Any

import pytest

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.schemas import FORMATS, compilable


def within(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": fields}, "required": ["p"]}


@pytest.mark.parametrize(
    "format", ["password", "byte", "binary", "uri-reference", "regex", "color", "int32"]
)
def test_n30_an_unknown_format_is_a_remark(format: str) -> None:
    string = {"type": "string"}
    assert compilable(within(**string, format=format)) == within(**string)
    assert "format" in str(compilable(within(**string, format="uuid"))) and "uuid" in FORMATS


def test_n30_a_property_named_like_a_keyword_stays() -> None:
    schema = {
        "type": "object",
        "properties": {"format": {"type": "string"}, "not": {"type": "string"}},
        "default": {"format": "password", "uniqueItems": False},
        "enum": [{"format": "byte"}, None],
    }
    assert compilable(schema) == schema


@pytest.mark.parametrize(
    "fields",
    [
        {"uniqueItems": False},
        {"maxLength": None},
        {"not": False},
        {"dependentRequired": {}},
        {"dependentSchemas": {}},
        {"propertyNames": {}},
        {"unevaluatedProperties": True},
        {"unevaluatedItems": {}},
        {"then": {"type": "string"}},
        {"if": {"type": "string"}},
        {"minContains": 2},
    ],
)
def test_n30_what_asks_for_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert compilable(within(**fields)) == within()


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"contains": {"type": "string"}}, "contains"),
        ({"if": {"type": "string"}, "then": {}}, "if"),
        ({"propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"unevaluatedProperties": False, "allOf": [{}]}, "unevaluatedProperties"),
        ({"items": {"uniqueItems": True}}, "items.uniqueItems"),
        ({"anyOf": [{}, {"not": {}}]}, "anyOf[1].not"),
    ],
)
def test_n30_what_cannot_be_held_to_is_refused_by_its_path(
    fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(RequestError) as caught:
        Grammar.json_schema(within(**fields))
    assert caught.value.param == f"grammar.properties.p.{place}"
    assert str(caught.value).startswith(f"grammar.properties.p.{place} is ")


def test_older_words_mean_what_the_newer_ones_do() -> None:
    old = {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 3}
    new = {"type": "number", "exclusiveMinimum": 1, "maximum": 3}
    assert compilable(old) == new
    plain = {"type": "number", "minimum": 1}
    assert compilable({**plain, "exclusiveMinimum": False}) == plain
    closed = {"properties": {"a": {}}, "unevaluatedProperties": False}
    assert compilable(closed) == {"properties": {"a": {}}, "additionalProperties": False}
