"""Items, tools and text formats of OpenAI's Responses as ours; faults name fields as they came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import inside, shown
from cutaway.server.constraints import FORMATS, schema_grammar
from cutaway.server.tools import ToolMode, Tools, chosen, entries_of, function_of, object_of
from cutaway.text.kinds import is_row
from cutaway.text.messages import Message, Part, Text, ToolCall, ToolResult, arguments_of

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")


def messages_of(instructions: object, given: object) -> tuple[Message, ...]:
    """The conversation; instructions are a system message at its start.

    Reasoning and calls belong to one message of the assistant, as templates expect them.
    """
    messages: list[Message] = []
    if instructions is not None:
        text = _string(instructions, "instructions")
        messages.append(Message(role="system", content=(Text(text),), place="instructions"))
    if isinstance(given, str):
        return (*messages, Message(role="user", content=(Text(given),), place="input"))
    if not is_row(given) or not given:
        raise _fault("input", given, "it must be a string or a list of at least one item")
    names: dict[str, str] = {}  # of the tools, by the id of their call
    for index, item in enumerate(given):
        param = f"input[{index}]"
        message = replace(_item(object_of(item, param), param, names), place=param)
        last = messages[-1] if messages else None
        if last is not None and _is_one_turn(last, message):
            messages[-1] = _joined(last, message)
        else:
            messages.append(message)
    return tuple(messages)


def tools_of(tools: object, tool_choice: object) -> Tools | None:
    """What is offered. Raises: RequestError; also for tools that OpenAI runs itself."""
    offered = [_tool(*entry) for entry in entries_of(tools)]
    mode, name = _choice(tool_choice)
    return chosen(offered, mode, name=name)


def form_of(text: object) -> Grammar | None:
    """The form that the text field asks for."""
    if text is None:
        return None
    for name, item in object_of(text, "text").items():
        if name != "format" and item is not None:
            raise _fault(inside("text", name), item, "only text.format is supported")
    wanted = object_of(text, "text").get("format")
    if wanted is None:
        return None
    fields = object_of(wanted, "text.format")
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            return Grammar.json_object()
        case "json_schema":
            return schema_grammar(fields.get("schema"), "text.format.schema")
        case kind:
            raise _fault("text.format.type", kind, f"it must be one of {', '.join(FORMATS)}")


def _choice(value: object) -> tuple[ToolMode, str | None]:
    match value:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case {"type": "function", "name": str() as name}:
            return "named", name
        case _:
            rule = "it must be none, auto, required, or an object with type function and name"
            raise _fault("tool_choice", value, rule)


def _tool(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    kind = fields.get("type")
    if kind != "function":
        raise _fault(f"{param}.type", kind, 'only tools of your own, "function", can be called')
    return function_of(fields, param)


def _item(fields: Mapping[str, object], param: str, names: dict[str, str]) -> Message:
    match fields.get("type"):
        case None | "message":
            return _message(fields, param)
        case "function_call":
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            names[call_id] = name = _string(fields.get("name"), f"{param}.name")
            at = f"{param}.arguments"
            arguments = arguments_of(_string(fields.get("arguments"), at), at)
            return Message(role="assistant", content=(ToolCall(name, arguments, call_id),))
        case "function_call_output":
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            text = _text(fields.get("output"), f"{param}.output")
            return Message(role="tool", content=(ToolResult(text, call_id, names.get(call_id)),))
        case "reasoning":
            thoughts = fields.get("content")
            text = "" if thoughts is None else _text(thoughts, f"{param}.content", "reasoning_text")
            return Message(role="assistant", content=(), reasoning=text)
        case kind:
            rule = "it must be message, function_call, function_call_output or reasoning"
            raise _fault(f"{param}.type", kind, rule)


def _message(fields: Mapping[str, object], param: str) -> Message:
    role = fields.get("role")
    if role not in ROLES:
        raise _fault(f"{param}.role", role, f"it must be one of {', '.join(ROLES)}")
    text = _text(fields.get("content"), f"{param}.content", *_TEXTS)
    return Message(role=cast(str, role), content=(Text(text),))


def _text(value: object, param: str, *kinds: str) -> str:
    """A string, or the texts of a list of parts, one behind the other."""
    if isinstance(value, str):
        return value
    if not is_row(value) or not value:
        raise _fault(param, value, "it must be a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        at = f"{param}[{index}]"
        fields = object_of(part, at)
        if fields.get("type") not in (kinds or _TEXTS):
            rule = f"this model reads {' and '.join(kinds or _TEXTS)} only"
            raise _fault(f"{at}.type", fields.get("type"), rule)
        texts.append(_string(fields.get("text"), f"{at}.text"))
    return "".join(texts)


def _is_one_turn(last: Message, message: Message) -> bool:
    """Whether what follows belongs to the assistant's message before it."""
    if last.role != "assistant" or message.role != "assistant" or message.reasoning is not None:
        return False
    is_answer = any(isinstance(part, Text) for part in message.content)
    return not (is_answer and last.content)


def _joined(last: Message, message: Message) -> Message:
    content: tuple[Part, ...] = (*last.content, *message.content)
    return replace(last, content=content)


def _string(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise _fault(param, value, "it must be a string")
    return value


def _fault(param: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{param} is {shown(value)}; {rule}.", param=param)
