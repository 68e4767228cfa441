"""The inside of a call: a JSON object read character by character, and what a whole body says."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

ARGUMENT_KEYS = ("arguments", "parameters")
MAX_CHARACTERS = 2**18  # of one call; what is longer is content


@dataclass(frozen=True)
class FoundCall:
    """A call that is whole and makes sense. arguments: a JSON object, as the model wrote it."""

    name: str
    arguments: str


class ObjectScanner:
    """Follows one JSON object: where it ends, the name in it, and where its arguments stand.

    It does not judge JSON; whoever has the whole text does.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.arguments = ""
        self.is_done = False
        self._depth = 0
        self._string: str | None = None  # of the open string, quotes left out
        self._is_escaped = False
        self._is_value = False  # at depth 1: after the colon
        self._key = ""
        self._is_arguments = False

    def push(self, char: str) -> str:
        """The character, if it is a part of the arguments; else nothing."""
        opens_arguments = (
            char == "{" and self._depth == 1 and self._is_value and self._key in ARGUMENT_KEYS
        )
        self._is_arguments = self._is_arguments or (opens_arguments and self._string is None)
        piece = char if self._is_arguments else ""
        if self._string is not None:
            self._in_string(char)
        else:
            self._outside(char)
        self.arguments += piece
        return piece

    def _in_string(self, char: str) -> None:
        if char != '"' or self._is_escaped:
            self._string = (self._string or "") + (char if self._depth == 1 else "")
            self._is_escaped = char == "\\" and not self._is_escaped
            return
        text, self._string = self._string or "", None
        if self._depth != 1:
            return
        if not self._is_value:
            self._key = text
        elif self._key == "name":
            self.name = _unescaped(text)

    def _outside(self, char: str) -> None:
        if char == '"':
            self._string = ""
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._is_arguments = False
            self.is_done = self._depth <= 0
        elif self._depth == 1 and char in ":,":
            self._is_value = char == ":"


def read_object(
    text: str, arguments: str, tools: Collection[str], *, exact: bool
) -> list[FoundCall]:
    """The call in a JSON object; none when it is no call of a known tool.

    exact: whether other keys make it something else, because nothing marks it as a call.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict):
        return []
    fields = cast("dict[str, object]", value)
    name = fields.get("name")
    given = [key for key in ARGUMENT_KEYS if key in fields]
    if not isinstance(name, str) or not name or (tools and name not in tools) or len(given) > 1:
        return []
    if (exact and set(fields) != {"name", *given[:1]}) or (exact and not given):
        return []
    if not given:
        return [FoundCall(name, "{}")]
    return [FoundCall(name, arguments)] if isinstance(fields[given[0]], dict) else []


def read_python(text: str, tools: Collection[str]) -> list[FoundCall]:
    """The calls in a Python list of them; none when one of them is anything else."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return []
        return [_python_call(node, tools) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _python_call(node: ast.expr, tools: Collection[str]) -> FoundCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with names for its arguments")
    name = ast.unparse(node.func)
    if not all(part.isidentifier() for part in name.split(".")) or (tools and name not in tools):
        raise ValueError("no known tool")
    values = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
    if None in values or len(values) < len(node.keywords):
        raise ValueError("a name is missing or stands twice")
    return FoundCall(name, json.dumps(values, ensure_ascii=False, allow_nan=False))


def _unescaped(text: str) -> str | None:
    try:
        return cast(str, json.loads(f'"{text}"'))
    except ValueError:
        return None
