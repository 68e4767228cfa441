"""What a grammar's text alone tells: kinds, sizes, depth, and keywords that nobody can hold to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.request import SamplingParams


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_equal_texts_are_equal_grammars() -> None:
    assert Grammar.json_schema({"type": "object"}) == Grammar("json_schema", '{"type": "object"}')
    assert len({Grammar.regex("a"), Grammar.regex("a"), Grammar.lark("a")}) == 2
    assert Grammar.choice(["é", "b"]).choices == ("é", "b")
    assert SamplingParams(grammar=Grammar.json_object()).grammar == Grammar("json_object")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Grammar("xml", "a"), "kinds are json_schema"),  # pyright: ignore
        (lambda: Grammar("regex", 5), "must be a string"),  # pyright: ignore
        (lambda: Grammar("regex", ""), "empty regex"),
        (lambda: Grammar("lark", ""), "empty lark"),
        (lambda: Grammar("regex", "a" * 2049), "at most 2048"),
        (lambda: Grammar("regex", "\ud83d"), "lone surrogate"),
        (lambda: Grammar("json_object", "x"), "at most 0"),
        (lambda: Grammar("json_schema", "{"), "must be a JSON schema"),
        (lambda: Grammar("json_schema", '{"minimum": NaN}'), "must be a JSON schema"),
        (lambda: Grammar("json_schema", "[" * 60_000), "must be a JSON schema"),
        (lambda: Grammar.json_schema({"enum": ["x" * 65_536]}), "at most 65536"),
        (lambda: Grammar.json_schema({"a": object()}), "must be a JSON schema"),
        (lambda: Grammar.json_schema({"minimum": float("inf")}), "must be a JSON schema"),
        (lambda: Grammar.json_schema(nested(33)), "more than 32 levels"),
        (lambda: Grammar.json_schema(False), "nothing is valid"),
        (lambda: Grammar.json_schema([]), "must be an object"),
        (lambda: Grammar.json_schema({"x-guidance": {"lenient": True}}), "x-guidance"),
        (lambda: Grammar.json_schema({"minProperties": 1}), "minProperties 1"),
        (lambda: Grammar.choice([]), "at least one string"),
        (lambda: Grammar.choice(["a", ""]), "empty choice"),
        (lambda: Grammar.choice(["a", 1]), "at least one string"),  # pyright: ignore
        (lambda: Grammar.choice(["a"] * 1025), "at most 1024"),
        (lambda: SamplingParams(grammar="a"), "must be a Grammar"),  # pyright: ignore
    ],
)
def test_what_cannot_be_a_grammar_is_refused(make: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        make()
    assert caught.value.param == "grammar"
    assert len(str(caught.value)) < 400


def test_what_is_at_the_bound_is_taken() -> None:
    Grammar.json_schema(nested(32))
    Grammar.json_schema(True)
    Grammar.json_schema({"minProperties": 1, "required": ["a"]})
    Grammar.json_schema({"properties": {"minProperties": {"type": "integer"}}})
    Grammar.regex("a" * 2048)
    Grammar.choice([str(number) for number in range(1024)])


def test_the_order_of_properties_is_kept() -> None:
    schema = {"properties": {"b": {}, "a": {}}}
    assert list(json.loads(Grammar.json_schema(schema).text)["properties"]) == ["b", "a"]
