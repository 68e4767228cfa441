"""Tools of OpenAI's Responses as the model is told of them, and the way back to the client's names.

Tools may stand in namespaces, one for each MCP server of Codex. A template knows single names
alone, so the model is told both as one, and its calls name them apart again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.openai.responses_fields import (
    ADDED_TOOLS,
    CUSTOM_FORMAT,
    CUSTOM_TOOL,
    FUNCTION,
    NAMESPACE,
    TOOL_CHOICE,
)
from cutaway.server.tools import (
    ToolMode,
    Tools,
    choose_tools,
    entries_of,
    function_of,
    may_be_called,
    object_of,
)
from cutaway.text.chat_messages import plain
from cutaway.text.kinds import is_row, is_table

# Tools that OpenAI runs. The model is not told of them, as if it never chose one.
HOSTED = frozenset(
    "web_search web_search_preview file_search code_interpreter image_generation mcp computer "
    "computer_use_preview local_shell shell apply_patch tool_search".split()
)
# Items of the input that bring tools: OpenAI's own, and what a program found when it looked.
BRINGS_TOOLS = ("additional_tools", "tool_search_output")
PLAIN_SPACE = "functions"  # Codex's name for the space of tools that are in none


@dataclass(frozen=True)
class Space:
    """The namespace that a tool stands in; one may have no name."""

    name: str | None


@dataclass(frozen=True)
class Called:
    """How the client knows a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False  # it takes free text

    @property
    def told(self) -> str:
        """What the model is told that it is called."""
        if self.namespace in (None, PLAIN_SPACE):
            return self.name
        space = str(self.namespace)
        return f"{space}{'' if space.endswith('_') else '__'}{self.name}"

    @property
    def fields(self) -> dict[str, str]:
        """The names that an item of a call has."""
        space = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": self.name, **space}


@dataclass(frozen=True)
class Offer:
    """Tools on offer: as templates read them, and each by the name that the model is told."""

    functions: Sequence[Mapping[str, object]] = ()
    called: Mapping[str, Called] = field(default_factory=dict[str, Called])

    def find(self, told: str) -> Called:
        """What the client calls a tool; its name alone, if it is none of those on offer."""
        return self.called.get(told, Called(told))

    def told_name(self, name: str, namespace: str | None) -> str:
        """What the model is told a tool of the client is called, in a history too."""
        told = Called(name, namespace).told
        return name if told not in self.called and name in self.called else told


def offer_of(tools: object, items: Iterable[tuple[object, str]] = ()) -> Offer:
    """The tools of a request, and those that items of its input bring. Raises: RequestError."""
    told = [each for entry in entries_of(tools) for each in _told(*entry)]
    for item, param in items:
        if is_table(item) and item.get("type") in BRINGS_TOOLS:
            fields = object_of(item, param)
            ADDED_TOOLS.check(fields, param)
            brought = entries_of(fields.get("tools"), f"{param}.tools")
            new = [each for entry in brought for each in _told(*entry)]
            names = {called.told for _, called in new}  # told again in each turn
            told = [*(each for each in told if each[1].told not in names), *new]
    return Offer([function for function, _ in told], {each.told: each for _, each in told})


def choose_of(offer: Offer, tool_choice: object) -> Tools | None:
    """What the model may choose from. Raises: RequestError."""
    mode, name = _choice(tool_choice, offer)
    return choose_tools(offer.functions, mode, name=name)


def _choice(value: object, offer: Offer) -> tuple[ToolMode, str | None]:
    match value:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case {"type": "function" | "custom", "name": str() as name}:
            fields = object_of(value, "tool_choice")
            TOOL_CHOICE.check(fields, "tool_choice")
            space = fields.get("namespace")
            if not (space is None or isinstance(space, str)):
                raise _fault("tool_choice.namespace", space, "it must be a string")
            told = offer.told_name(name, space)
            alike = [each for each, called in offer.called.items() if called.name == name]
            return "named", alike[0] if told not in offer.called and len(alike) == 1 else told
        case _:
            rule = "it must be none, auto, required, or an object with type function and name"
            raise _fault("tool_choice", value, rule)


def _told(
    fields: Mapping[str, object], param: str, *, space: Space | None = None
) -> list[tuple[Mapping[str, object], Called]]:
    """What the model is told of one entry, and the client's names for it."""
    kind = fields.get("type")
    if not may_be_called(fields):
        return []
    if kind in ("function", "custom"):
        is_custom = kind == "custom"
        (CUSTOM_TOOL if is_custom else FUNCTION).check(fields, param)
        told = _free(fields, param) if is_custom else _plain(fields, param)
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            return [(function_of(told, param), Called(""))]  # it raises, by the name
        called = Called(name, None if space is None else space.name, is_custom)
        return [(function_of({**told, "name": called.told}, param), called)]
    if kind == "namespace" and space is None:
        return _introduced([*_members(fields, param)], fields, param)
    if isinstance(kind, str) and _undated(kind) in HOSTED:
        return []
    raise _fault(f"{param}.type", kind, 'only tools of your own, "function", can be called')


def _inner(tool: Mapping[str, object]) -> Mapping[str, object]:
    return cast("Mapping[str, object]", tool["function"])


def _plain(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    """A function whose output's schema stands in its description: templates have no other place."""
    if fields.get("output_schema") is None:
        return fields
    schema = object_of(fields["output_schema"], f"{param}.output_schema")
    written = json.dumps(plain(schema, f"{param}.output_schema"), ensure_ascii=False)
    words, own = f"Its output follows this schema: {written}", fields.get("description")
    return {**fields, "description": words if own is None else f"{own}\n{words}"}


def _free(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    """A tool that takes free text, as a function of one text."""
    words = fields.get("description")
    if fields.get("format") is not None:
        form = object_of(fields["format"], f"{param}.format")
        CUSTOM_FORMAT.check(form, f"{param}.format")
        if isinstance(form.get("definition"), str):
            words = f"{words or ''}\nThe input follows this {form.get('syntax')} grammar:\n"
            words += str(form["definition"])
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"name": fields.get("name"), "description": words, "parameters": schema}


def _members(
    fields: Mapping[str, object], param: str
) -> Iterator[tuple[Mapping[str, object], Called]]:
    NAMESPACE.check(fields, param)
    name = fields.get("name")
    if not (name is None or isinstance(name, str)):
        raise _fault(f"{param}.name", name, "it must be a string")
    if not is_row(fields.get("tools")):
        raise _fault(f"{param}.tools", fields.get("tools"), "it must be a list")
    for entry in entries_of(fields.get("tools"), f"{param}.tools"):
        yield from _told(*entry, space=Space(name))


def _introduced(
    members: list[tuple[Mapping[str, object], Called]], fields: Mapping[str, object], param: str
) -> list[tuple[Mapping[str, object], Called]]:
    """The tools of a namespace; what is said of all of them stands before the first."""
    words = fields.get("description")
    if words is None or not members:
        return members
    if not isinstance(words, str):
        raise _fault(f"{param}.description", words, "it must be a string")
    (first, called), *others = members
    own = _inner(first).get("description")
    told = {**_inner(first), "description": f"{words}\n{own}" if own else words}
    return [({**first, "function": told}, called), *others]


def _undated(kind: str) -> str:
    """A tool's type without the date of its version."""
    return re.sub(r"_(\d{4}_\d{2}_\d{2}|\d{8})$", "", kind)


def _fault(param: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{param} is {quote(value)}; {rule}.", param=param)
