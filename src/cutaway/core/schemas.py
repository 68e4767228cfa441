"""A client's JSON schema as the compiler of grammars takes it: remarks out, faults by their path.

JSON Schema lets a schema say what asks for nothing (uniqueItems false) or only informs (a format
that nobody knows); such words are left out. What no mask of tokens can hold to is refused by the
place where it stands. Free of the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.limits import inside, quote

# Formats that the compiler holds strings to; all others are remarks, as JSON Schema has it.
FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
_SCHEMAS = (  # keywords whose value is a schema
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_TABLES = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_VALUES = ("const", "default", "enum", "example", "examples")  # null is a value there
# What a mask cannot hold to, and the values with which it asks for nothing.
_UNHELD: Mapping[str, tuple[object, ...]] = {
    "contains": (),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "if": (),
    "not": (False,),
    "propertyNames": ({}, True),
    "unevaluatedItems": ({}, True),
    "unevaluatedProperties": ({}, True),
    "uniqueItems": (False,),
}
# Words that mean something beside another one alone.
_BESIDE = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
_JOINING = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef")


def compilable(schema: object, param: str = "grammar") -> object:
    """The same schema without what asks for nothing.

    Raises: RequestError naming the place of what cannot be held to, under param.
    """
    if not isinstance(schema, dict):
        return schema
    fields = {
        key: value
        for key, value in cast("dict[str, object]", schema).items()
        if (value is not None or key in _VALUES) and not _is_remark(key, value)
    }
    for key, partner in _BESIDE.items():
        if partner not in fields:
            fields.pop(key, None)
    if "then" not in fields and "else" not in fields:
        fields.pop("if", None)
    _close(fields)
    _exclude(fields)
    for key, value in fields.items():
        if key in _UNHELD or (key in _BESIDE and _BESIDE[key] in fields):
            place = inside(param, key)
            raise RequestError(
                f"{place} is {quote(value)}; answers cannot be held to {key}. Leave it out.",
                param=place,
            )
    return {key: _inner(key, value, param) for key, value in fields.items()}


def _is_remark(key: str, value: object) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    return any(value == each and type(value) is type(each) for each in _UNHELD.get(key, ()))


def _close(fields: dict[str, object]) -> None:
    """Names that no part of the schema speaks of: where it has one part, those beside its own."""
    is_closed = fields.get("unevaluatedProperties") is False
    if is_closed and not any(key in fields for key in (*_JOINING, "if")):
        del fields["unevaluatedProperties"]
        fields.setdefault("additionalProperties", False)


def _exclude(fields: dict[str, object]) -> None:
    """The older way to leave an end out: a switch beside it. The compiler would not see it."""
    for key, end in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(fields.get(key), bool):
            is_left_out = fields.pop(key)
            if is_left_out and end in fields:
                fields[key] = fields.pop(end)


def _inner(key: str, value: object, param: str) -> object:
    if isinstance(value, list) and key in _LISTS:
        parts = cast("list[object]", value)
        return [compilable(each, f"{inside(param, key)}[{n}]") for n, each in enumerate(parts)]
    if isinstance(value, dict) and key in _TABLES:
        table = cast("dict[str, object]", value)
        at = inside(param, key)
        return {name: compilable(each, inside(at, name)) for name, each in table.items()}
    return (
        compilable(cast(object, value), inside(param, key))
        if key in _SCHEMAS
        else cast(object, value)
    )
