"""Tools that a request offers and how the model may choose among them, in one form.

What a model says with them is read in stream/; this is the client's side alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.field_types import array, object_schema
from cutaway.text.kinds import is_row
from cutaway.text.object_fields import ObjectFields, RefusedField

ToolMode = Literal["none", "auto", "required", "named"]

# OpenAI takes 128 and Anthropic many more; programs with several MCP servers send some hundreds.
MAX_TOOLS = 512
MAX_NAME = 128  # as Anthropic and MCP; OpenAI takes 64
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")

# Nothing holds the arguments of a call that the model makes of itself to its schema, strict or not;
# those of a call that it must make are held to it either way.
_INSIDE = RefusedField("Put it inside function.")
TOOL = ObjectFields(
    "a tool",
    read=("type", "function"),
    notes=("cache_control",),
    # Where OpenAI's Responses has them.
    refused={"name": _INSIDE, "description": _INSIDE, "parameters": _INSIDE},
)
FUNCTION = ObjectFields(
    "a function",
    read=("name", "description", "parameters", "return"),
    notes=("strict", "cache_control"),
)
TOOL_CHOICE = ObjectFields("a choice of a tool", read=("type", "function"))
CHOSEN_FUNCTION = ObjectFields("a chosen function", read=("name",))
OBJECTS = (TOOL, FUNCTION, TOOL_CHOICE, CHOSEN_FUNCTION)

TOOLS = array(
    object_schema(
        TOOL,
        {"type": {"const": "function"}, "function": object_schema(FUNCTION)},
        required=["type", "function"],
    ),
    maxItems=MAX_TOOLS,
)
TOOL_CHOICES: dict[str, Any] = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        object_schema(TOOL_CHOICE, {"function": object_schema(CHOSEN_FUNCTION)}),
    ]
}


@dataclass(frozen=True)
class Tools:
    """Tools on offer. choice names the one tool that must be called, where one must.

    offered: as templates read them: dicts with type and function.
    """

    offered: Sequence[Mapping[str, object]]
    mode: ToolMode
    choice: str | None = None

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in ("required", "named")

    @property
    def functions(self) -> list[Mapping[str, object]]:
        """Name, description and parameters of each."""
        return [cast("Mapping[str, object]", tool["function"]) for tool in self.offered]

    @property
    def names(self) -> frozenset[str]:
        """What may be called."""
        return frozenset(cast(str, function["name"]) for function in self.functions)


def tools_of(tools: object, tool_choice: object) -> Tools | None:
    """What a chat request offers; None where it offers nothing, or nothing may be called.

    Raises: RequestError naming the field, as in tools[2].function.name.
    """
    mode, choice = _choice(tool_choice)
    return choose_tools([_tool(*entry) for entry in entries_of(tools)], mode, name=choice)


def choose_tools(
    offered: Sequence[Mapping[str, object]], mode: ToolMode, *, name: str | None
) -> Tools | None:
    """The tools and how they are chosen from, if they fit together. Raises: RequestError."""
    if not offered:
        if mode in ("none", "auto"):
            return None
        raise RequestError(
            f"tool_choice is {quote(name or mode)} without tools; send tools as well.",
            param="tool_choice",
        )
    names = [cast("Mapping[str, str]", tool["function"])["name"] for tool in offered]
    if name is not None and name not in names:
        raise RequestError(
            f"tool_choice names {quote(name)}; tools has {', '.join(names)}.",
            param="tool_choice",
        )
    return None if mode == "none" else Tools(offered, mode, name)


def entries_of(tools: object, place: str = "tools") -> list[tuple[Mapping[str, object], str]]:
    """The entries of a list of tools, each with its place, as in tools[2]."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise RequestError(f"{place} is {quote(tools)}; it must be a list.", param=place)
    entries = cast("list[object]", tools)
    if len(entries) > MAX_TOOLS:
        raise RequestError(
            f"{place} has {len(entries)} entries; at most {MAX_TOOLS} are allowed.", param=place
        )
    places = [f"{place}[{index}]" for index in range(len(entries))]
    return [(object_of(entry, at), at) for entry, at in zip(entries, places, strict=True)]


def function_of(
    fields: Mapping[str, object], param: str, *, schema: str = "parameters"
) -> Mapping[str, object]:
    """A function as templates read it. schema: what the API calls the schema of its arguments."""
    name, parameters, words = fields.get("name"), fields.get(schema), fields.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{param}.name is {quote(name)}; it must have 1 to {MAX_NAME} letters, digits, "
            "underscores, dots or dashes.",
            param=f"{param}.name",
        )
    function: dict[str, object] = {"name": name}
    if words is not None:
        if not isinstance(words, str):
            at = f"{param}.description"
            raise RequestError(f"{at} is {quote(words)}; it must be a string.", param=at)
        function["description"] = words
    if parameters is not None:
        function["parameters"] = object_of(parameters, f"{param}.{schema}")
    if fields.get("return") is not None:  # transformers writes it of a function's own annotation
        function["return"] = object_of(fields["return"], f"{param}.return")
    return {"type": "function", "function": function}


def may_be_called(fields: Mapping[str, object]) -> bool:
    """Whether the model itself may call a tool: some are for a provider's own code alone."""
    callers = fields.get("allowed_callers")
    return not is_row(callers) or not callers or "direct" in callers


def object_of(value: object, param: str) -> Mapping[str, object]:
    """A JSON object. Raises: RequestError."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} is {quote(value)}; it must be an object.", param=param)
    return cast("Mapping[str, object]", value)


def _tool(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    if fields.get("type") != "function":
        raise RequestError(
            f'{param}.type is {quote(fields.get("type"))}; it must be "function".',
            param=f"{param}.type",
        )
    TOOL.check(fields, param)
    at = f"{param}.function"
    function = object_of(fields.get("function"), at)
    FUNCTION.check(function, at)
    return function_of(function, at)


def _choice(value: object) -> tuple[ToolMode, str | None]:
    match value:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case {"type": "function", "function": {"name": str() as name}}:
            chosen = cast("Mapping[str, Mapping[str, object]]", value)
            TOOL_CHOICE.check(chosen, "tool_choice")
            CHOSEN_FUNCTION.check(chosen["function"], "tool_choice.function")
            return "named", name
        case _:
            raise RequestError(
                f"tool_choice is {quote(value)}; it must be none, auto, required, or an object "
                "with type function and function.name.",
                param="tool_choice",
            )
