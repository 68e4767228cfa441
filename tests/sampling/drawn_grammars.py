"""Grammars drawn at random: sound schemas, no two alike, and grammars of many kinds of ill will."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from cutaway.core.grammar import Grammar

WORDS = ("a", "bc", "name", "\u00fc", "x y", "0", 'q"', "\\", "\U0001f999", "type")


def schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A sound schema with short answers, so that a random writer comes to their end."""
    kinds: list[Callable[[random.Random, int], dict[str, Any]]] = [
        *(_integer, _string, _pattern, _enum, _constant, _simple),
        *((_object, _array, _any_of) if depth < 3 else ()),
    ]
    return chance.choice(kinds)(chance, depth)


def _integer(chance: random.Random, _: int) -> dict[str, Any]:
    least = chance.randint(-10_000, 10_000)
    return {"type": "integer", "minimum": least, "maximum": least + chance.randint(0, 5000)}


def _string(chance: random.Random, _: int) -> dict[str, Any]:
    least = chance.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + chance.randint(0, 4)}


def _pattern(chance: random.Random, _: int) -> dict[str, Any]:
    first, last = sorted(chance.sample("abcdefghijklmnop", 2))
    least = chance.randint(0, 2)
    return {"type": "string", "pattern": f"^[{first}-{last}]{{{least},{least + 2}}}[0-9]?$"}


def _enum(chance: random.Random, _: int) -> dict[str, Any]:
    values = [chance.randint(-99, 99), chance.choice(WORDS), None, True, [1], {"k": "v"}]
    return {"enum": chance.sample(values, chance.randint(1, 4))}


def _constant(chance: random.Random, _: int) -> dict[str, Any]:
    return {"const": chance.choice((chance.randint(0, 10**6), chance.choice(WORDS), [True, None]))}


def _simple(chance: random.Random, _: int) -> dict[str, Any]:
    return {"type": chance.choice(("boolean", "null", ["boolean", "null"]))}


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(WORDS, chance.randint(1, 4))
    required = [name for name in names if chance.random() < 0.6]
    return {
        "type": "object",
        "properties": {name: schema(chance, depth + 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    least = chance.randint(0, 2)
    made: dict[str, Any] = {"type": "array", "minItems": least, "maxItems": least + 2}
    return {**made, "items": schema(chance, depth + 1)}


def _any_of(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(chance, depth + 1) for _ in range(chance.randint(1, 3))]}


def hostile(chance: random.Random) -> Grammar:
    """A grammar that wants for ever, all memory, a deep stack, or that is none."""
    return chance.choice(_HOSTILE)(chance)


def _nested(chance: random.Random) -> Grammar:
    opened, closed = chance.choice((("(", ")"), ("(?:", ")"), ("[", "]"), ("(a|", ")")))
    depth = int(10 ** chance.uniform(1, 4.5))
    return Grammar.regex((opened * depth + "a" + closed * depth)[:60_000])


def _repeated(chance: random.Random) -> Grammar:
    inner = chance.choice(("a", ".", "(a|aa)", r"\p{L}", "[^x]", "(a*)*", "(.*.*)"))
    for _ in range(chance.randint(1, 4)):
        inner = f"({inner}){{{chance.choice((0, 1, 9))},{chance.choice((10, 99, 1000, 10**6))}}}"
    return Grammar.regex(inner + chance.choice(("", "b", "$", "^")))


def _ambiguous(chance: random.Random) -> Grammar:
    part = chance.choice(("(a|aa)+", "(a*)*", "(a|a?)+", ".*a", "(x+x+)+y"))
    return Grammar.regex(part * chance.randint(1, 400) + "b")


def _looking(chance: random.Random) -> Grammar:
    parts = ("(?=a)b", "(?<=a)b", r"(a)\1", "(?!x)y", "(?P<a>x)(?P=a)", r"\b\B", "(?>a)", "(?R)")
    return Grammar.regex("".join(chance.choice(parts) for _ in range(chance.randint(1, 50))))


def _noise(chance: random.Random) -> Grammar:
    letters = "()[]{}|*+?.^$\\pLd0129,-a\u00e9\u0000\U0010ffff"
    text = "".join(chance.choice(letters) for _ in range(chance.randint(1, 300)))
    return chance.choice((Grammar.regex, Grammar.lark))(text)


def _deep(chance: random.Random) -> Grammar:
    key = chance.choice(("items", "not", "additionalProperties"))
    made: Any = {"type": "string"}
    for _ in range(chance.choice((30, 60, 300))):
        made = {key: made}
    return Grammar.json_schema(made)


def _chained(chance: random.Random) -> Grammar:
    length = chance.choice((50, 500, 1300, 3000))
    key = chance.choice(("items", "allOf", "anyOf"))

    def link(number: int) -> Any:
        to = {"$ref": f"#/$defs/n{number}"}
        return {key: [to, to] if key != "items" else to}

    links = {f"n{number}": link(number + 1) for number in range(length)}
    end = chance.choice(({"type": "string"}, {"$ref": "#/$defs/n0"}))
    return Grammar.json_schema({"$ref": "#/$defs/n0", "$defs": {**links, f"n{length}": end}})


def _large(chance: random.Random) -> Grammar:
    count = chance.choice((300, 1000, 3000))
    made: dict[str, Any] = chance.choice(
        (
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}},
            {"type": "array", "minItems": 10 ** count.bit_length(), "items": {"type": "null"}},
            {"enum": [f"{i:030d}" for i in range(count)]},
            {"type": "integer", "multipleOf": chance.randint(10**5, 10**9)},
            {"allOf": [{"pattern": f"^.*a.{{{i}}}$", "type": "string"} for i in range(30)]},
            {"type": "string", "minLength": count, "maxLength": 10**6},
        )
    )
    return Grammar.json_schema(made)


def _rules(chance: random.Random) -> Grammar:
    count = chance.choice((10, 300, 7000))
    name = chance.choice(("r", "R"))
    ends = ('"a"', f"{name}0", f'{name}0 "a"', f"{name}0 {name}0", "/(/", '""')
    lines = [f"{name}{i}: {name}{i + 1}" for i in range(count)]
    return Grammar.lark(
        "\n".join([f"start: {name}0", *lines, f"{name}{count}: {chance.choice(ends)}"])
    )


def _spoilt(chance: random.Random) -> Grammar:
    """A sound schema whose text or values went bad."""
    text = json.dumps(schema(chance))
    old = chance.choice(('"integer"', '"minimum"', '"type"', '"properties"', '"items"', "true"))
    new = chance.choice(('"intger"', '"maximum"', '"not"', "[]", "-1", '"$ref"', '"pattern"'))
    try:
        made = json.loads(text.replace(old, new))
    except ValueError:
        made = {"type": text}
    return Grammar.json_schema(made if isinstance(made, dict) else {"enum": made})


_HOSTILE = (
    *(_nested, _repeated, _ambiguous, _looking, _noise, _deep, _chained, _large, _rules, _spoilt),
)
