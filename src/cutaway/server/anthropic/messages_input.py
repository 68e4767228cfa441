"""Anthropic's messages, tools and choices as ours. Every fault names the field as it was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.limits import shown
from cutaway.server.tools import ToolMode, Tools, chosen, entries_of, function_of, object_of
from cutaway.text.kinds import is_row
from cutaway.text.messages import Message, Part, Text, ToolCall, ToolResult, plain

_MODES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
    "tool": "named",
}


def messages_of(system: object, messages: object) -> tuple[Message, ...]:
    """The conversation, a system prompt at its start where there is one."""
    if not is_row(messages) or not messages:
        raise _fault("messages", messages, "it must be a list of at least one message")
    names: dict[str, str] = {}  # of the tools, by the id of their call
    places = [f"messages[{index}]" for index in range(len(messages))]
    read = [
        replace(_message(each, place, names), place=place)
        for each, place in zip(messages, places, strict=True)
    ]
    if system is not None:
        texts = tuple(Text(text) for text in _texts(system, "system"))
        read.insert(0, Message(role="system", content=texts, place="system"))
    return tuple(read)


def tools_of(tools: object, tool_choice: object) -> tuple[Tools | None, bool]:
    """What is offered, and whether one answer may have several calls."""
    offered = [_tool(*entry) for entry in entries_of(tools)]
    if tool_choice is None:
        return chosen(offered, "auto", name=None), True
    fields = object_of(tool_choice, "tool_choice")
    kind, name = fields.get("type"), fields.get("name")
    mode = _MODES.get(kind) if isinstance(kind, str) else None
    if mode is None:
        allowed = f"it must be one of {', '.join(_MODES)}"
        raise _fault("tool_choice.type", kind, allowed)
    if mode != "named":
        name = None
    elif not isinstance(name, str):
        raise _fault("tool_choice.name", name, "it must be the name of a tool")
    single = fields.get("disable_parallel_tool_use")
    if single not in (None, True, False):
        raise _fault("tool_choice.disable_parallel_tool_use", single, "it must be true or false")
    return chosen(offered, mode, name=name), single is not True


def _tool(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    kind = fields.get("type")
    if kind not in (None, "custom"):
        raise _fault(f"{param}.type", kind, 'only tools of your own, "custom", can be called')
    return function_of(fields, param, schema="input_schema")


def _message(entry: object, param: str, names: dict[str, str]) -> Message:
    fields = object_of(entry, param)
    role, content = fields.get("role"), fields.get("content")
    if role not in ("user", "assistant"):
        raise _fault(f"{param}.role", role, "it must be user or assistant")
    if isinstance(content, str):
        return Message(role=cast(str, role), content=(Text(content),))
    if not is_row(content) or not content:
        raise _fault(f"{param}.content", content, "it must be a string or a list of blocks")
    thoughts: list[str] = []
    parts: list[Part] = []
    for index, block in enumerate(content):
        at = f"{param}.content[{index}]"
        block_fields = object_of(block, at)
        if block_fields.get("type") == "thinking" and role == "assistant":
            thoughts.append(_string(block_fields.get("thinking"), f"{at}.thinking"))
        else:
            parts.append(_part(block_fields, at, role=cast(str, role), names=names))
    reasoning = "".join(thoughts) if thoughts else None
    return Message(role=cast(str, role), content=tuple(parts), reasoning=reasoning)


def _part(fields: Mapping[str, object], param: str, *, role: str, names: dict[str, str]) -> Part:
    match fields.get("type"), role:
        case "text", _:
            return Text(_string(fields.get("text"), f"{param}.text"))
        case "tool_use", "assistant":
            call_id = _string(fields.get("id"), f"{param}.id")
            names[call_id] = name = _string(fields.get("name"), f"{param}.name")
            given = object_of(fields.get("input"), f"{param}.input")
            return ToolCall(name, plain(given, f"{param}.input"), call_id)
        case "tool_result", "user":
            call_id = _string(fields.get("tool_use_id"), f"{param}.tool_use_id")
            content = fields.get("content")
            texts = _texts("" if content is None else content, f"{param}.content")
            return ToolResult("".join(texts), call_id, names.get(call_id))
        case kind, _:
            allowed = "text and tool_result" if role == "user" else "text, thinking and tool_use"
            rule = f"this model takes {allowed} from the {role}"
            raise _fault(f"{param}.type", kind, rule)


def _texts(value: object, param: str) -> Sequence[str]:
    """The texts of a string or of a list of text blocks."""
    if isinstance(value, str):
        return [value]
    if not is_row(value):
        raise _fault(param, value, "it must be a string or a list of text blocks")
    return [_text(item, f"{param}[{index}]") for index, item in enumerate(value)]


def _text(item: object, param: str) -> str:
    fields = object_of(item, param)
    if fields.get("type") != "text":
        raise _fault(f"{param}.type", fields.get("type"), 'it must be "text"')
    return _string(fields.get("text"), f"{param}.text")


def _string(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise _fault(param, value, "it must be a string")
    return value


def _fault(param: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{param} is {shown(value)}; {rule}.", param=param)
