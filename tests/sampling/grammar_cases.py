"""Schemas that answers must be valid by, and grammars made to do harm."""

from __future__ import annotations

from typing import Any

from cutaway.core.grammar import Grammar

_POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "maximum": 9}, "y": {"enum": [0, 1]}},
    "required": ["y", "x"],
    "additionalProperties": False,
}

# Short answers by construction, so that a model that writes at random comes to their end.
SCHEMAS: dict[str, dict[str, Any]] = {
    "point, required in another order": _POINT,
    "enum of every type": {"enum": [1, 2.5, None, True, "x", [1, "a"], {"k": False}]},
    "integer enum": {"enum": [1, 22, 333]},
    "boolean enum": {"enum": [True]},
    "null": {"type": "null"},
    "null enum": {"enum": [None]},
    "const object": {"const": {"a": [1, {"b": None}], "é": "ü"}},
    "const number": {"const": -1.5},
    "boolean": {"type": "boolean"},
    "bounded integer": {"type": "integer", "minimum": -3, "maximum": 27},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 7},
    "number in a range": {"type": "number", "minimum": 0.5, "maximum": 2},
    "multiple of": {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7},
    "short string": {"type": "string", "maxLength": 5},
    "string of a length": {"type": "string", "minLength": 3, "maxLength": 3},
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}$"},
    "pattern without anchors": {"type": "string", "pattern": "^a|b$", "maxLength": 6},
    "escaped keys": {
        "type": "object",
        "properties": {'a"b\\c\n': {"type": "null"}, "\u00fc\U0001f999": {"enum": ["\u00df"]}},
        "required": ['a"b\\c\n', "\u00fc\U0001f999"],
        "additionalProperties": False,
    },
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "array of a length": {"type": "array", "items": _POINT, "minItems": 2, "maxItems": 3},
    "empty array": {"type": "array", "maxItems": 0},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"enum": ["a"]}],
        "items": False,
        "minItems": 1,
    },
    "any of": {"anyOf": [{"type": "null"}, _POINT, {"enum": ["a"]}]},
    "one of, told apart by type": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "list of types": {"type": ["boolean", "null"]},
    "optional properties": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "additional properties by a schema": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a"],
        "additionalProperties": {"enum": [7]},
        "maxProperties": 2,
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"enum": [1]}, "^y$": {"enum": [2]}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "recursion by reference": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"child": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}},
                "required": ["child"],
                "additionalProperties": False,
            }
        },
    },
    "reference with siblings": {
        "type": "object",
        "properties": {"n": {"$ref": "#/definitions/n", "maximum": 3}},
        "required": ["n"],
        "additionalProperties": False,
        "definitions": {"n": {"type": "integer", "minimum": 1}},
    },
    "unknown format is a remark": {"type": "string", "format": "zzz", "maxLength": 3},
    "unknown keyword is a remark": {"type": "boolean", "title": "t", "x-order": 3, "default": 1},
}

# Each is valid JSON Schema that the mask cannot hold to, or none at all.
REFUSED_SCHEMAS: dict[str, Any] = {
    "not": {"not": {"type": "string"}},
    "unique items": {"type": "array", "uniqueItems": True},
    "if": {"if": {"type": "string"}, "then": {"maxLength": 3}},
    "contains": {"type": "array", "contains": {"type": "null"}},
    "dependent required": {"dependentRequired": {"a": ["b"]}},
    "property names": {"propertyNames": {"maxLength": 3}},
    "wrong type name": {"type": "intger"},
    "type is a number": {"type": 5},
    "required is a word": {"type": "object", "required": "a"},
    "reference to the net": {"$ref": "http://127.0.0.1:1/schema.json"},
    "reference to a file": {"$ref": "file:///etc/passwd"},
    "reference to nothing": {"$ref": "#/$defs/none"},
    "reference to itself": {"$ref": "#"},
    "reference round": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    "empty any of": {"anyOf": []},
    "bounds the wrong way round": {"type": "integer", "minimum": 3, "maximum": 2},
    "lengths the wrong way round": {"type": "string", "minLength": 5, "maxLength": 3},
    "one of that overlaps": {"oneOf": [{"type": "string"}, {"maxLength": 3, "type": "string"}]},
    "bad pattern": {"type": "string", "pattern": "("},
    "overlapping pattern properties": {
        "patternProperties": {"^a": {"type": "integer"}, "^ab": {"type": "string"}}
    },
}


def _chain(length: int) -> dict[str, Any]:
    links = {f"n{i}": {"items": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/n0", "$defs": {**links, f"n{length}": {"type": "string"}}}


def _rules(name: str, length: int) -> str:
    links = "".join(f"{name}{i}: {name}{i + 1}\n" for i in range(length))
    return f'start: {name}0\n{links}{name}{length}: "a"\n'


# Made to take for ever, to fill memory or to overflow a stack; some of them did.
HOSTILE: dict[str, Grammar] = {
    "regexes to intersect": Grammar.json_schema(
        {"allOf": [{"type": "string", "pattern": f"^.*a.{{{i}}}$"} for i in range(30)]}
    ),
    "a large multiple": Grammar.json_schema({"type": "integer", "multipleOf": 1_000_003}),
    "a chain of references": Grammar.json_schema(_chain(1300)),
    "a chain of rules": Grammar.lark(_rules("r", 8000)),
    "a chain of terminals": Grammar.lark(_rules("R", 7000)),
    "parentheses in a grammar": Grammar.lark("start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "brackets in a grammar": Grammar.lark("start: " + "[" * 60_000 + '"a"' + "]" * 60_000),
    "schemas in a grammar": Grammar.lark(
        "start: %json " + '{"items":' * 10_000 + "{}" + "}" * 10_000
    ),
    "left recursion without an end": Grammar.lark('start: x\nx: x "a" | y\ny: y "b" | x'),
    "parentheses in a regex": Grammar.regex("(" * 1000 + "a" + ")" * 1000),
    "an open parenthesis": Grammar.regex("("),
    "a look behind": Grammar.regex("(?<=a)b"),
    "a back reference": Grammar.regex(r"(a)\1"),
    "twice each time": Grammar.json_schema(
        {
            "$ref": "#/$defs/n0",
            "$defs": {
                f"n{i}": {
                    "allOf": [
                        {"properties": {"a": {"$ref": f"#/$defs/n{i + 1}"}}},
                        {"properties": {"a": {"$ref": f"#/$defs/n{i + 1}"}}},
                    ]
                }
                for i in range(60)
            }
            | {"n60": {"type": "string"}},
        }
    ),
    "choices to multiply": Grammar.json_schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}{j}": {"type": "null"}}} for j in range(6)]}
                for i in range(10)
            ]
        }
    ),
    "all of itself": Grammar.json_schema({"allOf": [{"$ref": "#"}]}),
}

# As large, and compiled at once or refused; either way in bounded time.
HEAVY: dict[str, Grammar] = {
    "rules without an end": Grammar.lark('start: x\nx: "a" x y\ny: y y'),
    "repetitions to multiply": Grammar.regex("((a{1000}){1000}){1000}"),
    "many ways": Grammar.regex("(a|aa)+" * 250 + "b"),
    "far to look": Grammar.regex("(.*a.{0,200}b){8}"),
    "letters": Grammar.regex(r"\p{L}{1,2000}"),
    "a thousand properties": Grammar.json_schema(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    ),
    "a million items": Grammar.json_schema(
        {"type": "array", "items": {"type": "null"}, "minItems": 10**6, "maxItems": 10**7}
    ),
    "ambiguity": Grammar.lark('start: e\ne: e e e | e e | "a" | "b" | "" | /[ab]+/'),
    "a grammar without an end": Grammar.lark('start: x\nx: "a" x'),
    "the same end a thousand times": Grammar.choice([f"{i:01000}"[-60:] for i in range(1000)]),
}
