"""Twelve histories as clients send them back, each part with a word that stands nowhere else."""

from __future__ import annotations

import json
from typing import Any

TOOL_WORD = "zirkelwort"
TOOL = {
    "type": "function",
    "function": {
        "name": f"look_{TOOL_WORD}",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}


def call(number: int, arguments: Any) -> dict[str, Any]:
    """A call; ids have nine letters and digits, as Mistral's templates want them."""
    function = {"name": f"look_word{number}", "arguments": arguments}
    return {"id": f"call{number:05}", "type": "function", "function": function}


def said(role: str, number: int, **more: Any) -> dict[str, Any]:
    """A message with a word of its own."""
    return {"role": role, "content": f"Here is word{number}a.", **more}


def result(number: int, text: str, **more: Any) -> dict[str, Any]:
    """What a call gave."""
    return {"role": "tool", "tool_call_id": f"call{number:05}", "content": text, **more}


def calls(*each: dict[str, Any], content: Any = None, **more: Any) -> dict[str, Any]:
    """A message of calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(each), **more}


USER = said("user", 1)
ARGUMENTS = json.dumps({"q": "word3a", "n": 2})

# Name of the history: its messages, and the words that must reach the prompt.
HISTORIES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "a question": ([USER], ["word1a"]),
    "an order and a question": ([said("system", 2), USER], ["word2a", "word1a"]),
    "a developer": ([said("developer", 2), USER], ["word2a", "word1a"]),
    "instructions and a developer": (
        [said("system", 2), said("developer", 3), USER],
        ["word2a", "word3a", "word1a"],
    ),
    "three turns": (
        [USER, said("assistant", 2), said("user", 3)],
        ["word1a", "word2a", "word3a"],
    ),
    "a call and its result": (
        [USER, calls(call(2, ARGUMENTS)), result(2, "It is word4a.", name="look_word2")],
        ["word1a", "look_word2", "word3a", "word4a"],
    ),
    "text beside a call": (
        [USER, calls(call(2, ARGUMENTS), content="First word5a."), result(2, "It is word4a.")],
        ["word1a", "word5a", "look_word2", "word3a", "word4a"],
    ),
    "a call without arguments": (
        [USER, calls(call(2, ""), content=""), result(2, "It is word4a."), said("assistant", 6)],
        ["word1a", "look_word2", "word4a", "word6a"],
    ),
    "a call that was cut off": (
        [USER, calls(call(2, '{"q": "word3a')), result(2, "word4a"), said("user", 6)],
        ["word1a", "look_word2", "word3a", "word4a", "word6a"],
    ),
    "two calls at once, thought over": (
        [
            said("system", 7),
            USER,
            calls(call(2, ARGUMENTS), call(4, "null"), reasoning_content="Let me see."),
            result(2, "It is word5a."),
            result(4, "It is word6a."),
            said("assistant", 8),
            said("user", 9),
        ],
        [f"word{n}" for n in ("7a", "1a", "2", "3a", "4", "5a", "6a", "8a", "9a")],
    ),
    "speakers with names": (
        [said("user", 1, name="anna"), said("assistant", 2), said("user", 3, name="bert")],
        ["anna", "word1a", "word2a", "bert", "word3a"],
    ),
    "thoughts alone, and orders amid": (
        [
            USER,
            {"role": "assistant", "content": None, "reasoning": "Hm."},
            said("user", 2),
            said("system", 3),
            said("user", 4),
        ],
        ["word1a", "word2a", "word3a", "word4a"],
    ),
}
