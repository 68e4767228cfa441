"""Request bodies of ill will, made from the server's own OpenAPI: a seed gives the same ones."""

from __future__ import annotations

import json
import random
from typing import Any

NUMBERS = [
    *(0, -0.0, 1, -1, 2, 0.5, 1.0, 127, 128, 129, 255, 256, 257, 1024, 4096, 65_536, 1e-300, 1e300),
    *(2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64),
    *(10**30, 10**400, float("nan"), float("inf"), -float("inf"), 5e-324, 1.7976931348623157e308),
]
TEXTS = [
    *(
        "",
        " ",
        "a",
        "\x00",
        "\n",
        "\r\n\r\n",
        "\ufeff",
        "\ufffd",
        "\ud800",
        "\udfff\ud800",
        "\u202e",
    ),
    *(
        "\U0010ffff",
        "e\u0301" * 50,
        "\u0000\u0001\u0002",
        "<|im_end|>",
        "<|endoftext|>",
        "</think>",
    ),
    *("data: [DONE]\n\n", "event: error", "{{ 7*7 }}", "{% for x in range(9**9) %}{% endfor %}"),
    *("../../etc/passwd", "%s%n%d", "' OR 1=1", "${jndi:x}", "__proto__", "null", "true", "NaN"),
    *("x" * 300, "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 20, "9" * 500, "[" * 500),
]
REGEXES = ["(", "(a|b)*c", "a{1000000}", "(a*)*b", "[^\\x00-\\xff]", "", "\\p{L}+", "(?=a)b", ".*"]
SCHEMAS: list[Any] = [
    *({}, True, False, {"type": "widget"}, {"$ref": "#"}, {"$ref": "#/$defs/none"}, {"const": 1}),
    *({"type": "integer", "minimum": 5, "maximum": 1}, {"enum": []}, {"enum": [1, None, "a"]}),
    *({"type": "string", "pattern": "("}, {"allOf": [{}] * 100}, {"type": ["string", "null"]}),
    {"type": "array", "minItems": 10**9},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "object", "properties": {str(each): {"type": "string"} for each in range(200)}},
]
ROLES = ["user", "system", "assistant", "tool", "developer", "", "root", 1, None]
METHODS = ["POST"] * 120 + ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]
KINDS = ["application/json"] * 80 + ["text/plain", "", "application/json; charset=utf-7"]


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def any_value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say, and some that it cannot."""
    kind = chance.randrange(9 if depth < 3 else 5)
    if kind < 2:
        return chance.choice(NUMBERS)
    if kind < 4:
        return chance.choice(TEXTS)
    if kind == 4:
        return chance.choice((None, True, False, deep(63), deep(300)))
    if kind == 5:
        return [any_value(chance, depth + 1)] * chance.choice((0, 1, 2, 17, 300))
    if kind == 6:
        return [any_value(chance, depth + 1) for _ in range(chance.randrange(5))]
    keys = [*TEXTS, "type", "role", "content", "text", "name", "id", "1"]
    return {chance.choice(keys): any_value(chance, depth + 1) for _ in range(chance.randrange(5))}


def message(chance: random.Random) -> Any:
    """Something that looks like a message."""
    content = chance.choice(
        (
            chance.choice(TEXTS),
            [{"type": "text", "text": chance.choice(TEXTS)}],
            [{"type": chance.choice(("image_url", "input_text", "tool_use")), "text": 1}],
            any_value(chance),
        )
    )
    made = {"role": chance.choice(ROLES), "content": content}
    if chance.random() < 0.3:
        made[chance.choice(("tool_calls", "tool_call_id", "name", "refusal"))] = any_value(chance)
    return made


def tool(chance: random.Random) -> Any:
    """Something that looks like a tool."""
    name = chance.choice(("f", "weather", "", "a b", "x" * 65, 1))
    function = {"name": name, "description": chance.choice(TEXTS)}
    function["parameters"] = chance.choice(SCHEMAS)
    return {"type": "function", "function": function}


def nearly(chance: random.Random, name: str) -> Any:
    """A value that a field's reader looks into, instead of refusing it at sight."""
    schema = chance.choice(SCHEMAS)
    made: dict[str, Any] = {
        "messages": [message(chance) for _ in range(chance.randint(1, 4))],
        "input": [message(chance) for _ in range(chance.randint(1, 3))],
        "prompt": [chance.randrange(-1, 321) for _ in range(chance.choice((1, 5, 200, 300)))],
        "tokens": [chance.randrange(-1, 321) for _ in range(chance.randrange(50))],
        "stop": [chance.choice(TEXTS) for _ in range(chance.randrange(18))],
        "stop_token_ids": [chance.randrange(-1, 321) for _ in range(chance.randrange(130))],
        "logit_bias": {str(chance.randrange(330)): chance.choice((-100, 100, 101, 0.5))},
        "tools": [tool(chance) for _ in range(chance.randint(1, 3))],
        "tool_choice": chance.choice(("auto", "none", "required", any_value(chance))),
        "response_format": {
            "type": chance.choice(("json_schema", "json_object", "text", "xml")),
            "json_schema": {"name": "x", "schema": schema},
        },
        "structured_outputs": chance.choice(
            (
                {"regex": chance.choice(REGEXES)},
                {"json": schema},
                {"choice": [chance.choice(TEXTS) for _ in range(chance.randrange(4))]},
                {"grammar": chance.choice(("start: missing", 'start: "a"+', 'start: start "a"'))},
            )
        ),
        "n": chance.choice((1, 2, 5, 16, 129)),
        "max_tokens": chance.choice((0, 1, 3, 250, 10**6)),
    }
    return made.get(name, any_value(chance))


def ranged(chance: random.Random, schema: dict[str, Any]) -> Any:
    """The ends of a field's range and their neighbours."""
    ends = [schema[end] for end in ("minimum", "maximum", "exclusiveMinimum") if end in schema]
    if not ends:
        return chance.choice(NUMBERS)
    end = chance.choice(ends)
    return chance.choice((end, int(end), int(end) - 1, int(end) + 1, end / 2))


def allowed(chance: random.Random, schema: dict[str, Any]) -> Any:
    """A value that a field takes by its own schema, alone at least."""
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kinds = schema.get("type", "null")
    if "boolean" in kinds:
        return chance.random() < 0.5
    if "integer" not in kinds and "number" not in kinds:
        return None
    least, most = schema.get("minimum", 1e-9), schema.get("maximum", 1)
    if "integer" in kinds:
        return min(int(most), int(least) + chance.choice((0, 1, 2, 3, 16)))
    return chance.choice((least, most, (least + most) / 2, min(most, 1)))


def body(chance: random.Random, base: dict[str, Any], schema: dict[str, Any]) -> bytes:
    """A good body with a few fields gone bad, and now and then bytes gone bad."""
    made = dict(base)
    fields = schema["properties"]
    for _ in range(chance.choice((1, 1, 2, 4))):
        name = chance.choice(list(fields))
        kind = chance.random()
        if kind < 0.5 and name not in base:
            made[name] = allowed(chance, fields[name])
        elif kind < 0.75:
            made[name] = nearly(chance, name)
        elif kind < 0.9:
            made[name] = ranged(chance, fields[name])
        else:
            made[name] = any_value(chance)
    if chance.random() < 0.1:
        made.pop(chance.choice(list(made)))
    if chance.random() < 0.1:
        made[chance.choice(TEXTS)] = any_value(chance)
    data = json.dumps(made).encode()
    return spoilt(chance, data) if chance.random() < 0.15 else data


def spoilt(chance: random.Random, data: bytes) -> bytes:
    """The bytes cut, doubled, flipped or replaced."""
    where = chance.randrange(len(data) + 1)
    return chance.choice(
        (
            data[:where],
            data + data,
            b"\xef\xbb\xbf" + data,
            data[:where] + bytes([chance.randrange(256)]) + data[where + 1 :],
            data.decode().encode("utf-16"),
            chance.randbytes(where % 300),
            b"[" * 100_000,
            b'{"a":' * 5_000,
            data.replace(b'"model"', b'"model": "tiny", "model"', 1),
        )
    )
