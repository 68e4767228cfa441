"""Items, tools and text formats of OpenAI's Responses as ours; faults name fields as they came."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import quote
from cutaway.server.constraints import FORMATS, TEXT_FORMAT, schema_grammar
from cutaway.server.openai.responses_fields import (
    CALL_OUTPUT,
    CUSTOM_CALL,
    CUSTOM_FORMAT,
    CUSTOM_TOOL,
    FUNCTION,
    FUNCTION_CALL,
    MESSAGE,
    NAMESPACE,
    REASONING_ITEM,
    REFERENCE,
    REFUSAL_PART,
    TEXT,
    TEXT_PART,
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
from cutaway.text.chat_messages import (
    Json,
    Message,
    Part,
    Text,
    ToolCall,
    ToolResult,
    arguments_of,
    newest,
    plain,
    unread,
)
from cutaway.text.kinds import is_row, is_table

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def messages_of(
    instructions: object,
    given: object,
    *,
    earlier: Sequence[Mapping[str, object]] = (),
    place: str = "input",
) -> tuple[Message, ...]:
    """The conversation; instructions are a system message at its start.

    earlier: items of turns before, as the server kept them.
    place:   the field that holds what is given.

    Reasoning and calls belong to one message of the assistant, as templates expect them.
    """
    messages: list[Message] = []
    if instructions is not None:
        text = _string(instructions, "instructions")
        messages.append(Message(role="system", content=(Text(text),), place="instructions"))
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
        places = [place]
    elif is_row(given) and given:
        places = [f"{place}[{index}]" for index in range(len(given))]
    else:
        raise _fault(place, given, "it must be a string or a list of at least one item")
    names: dict[str, str] = {}  # of the tools, by the id of their call
    told = {str(item.get("id")): item for item in earlier}
    last_asked = newest(given)
    kept = [(item, f"earlier item {index}", False) for index, item in enumerate(earlier)]
    new = [
        (item, at, index >= last_asked)
        for index, (item, at) in enumerate(zip(given, places, strict=True))
    ]
    for item, param, is_newest in [*kept, *new]:
        fields = object_of(item, param)
        if fields.get("type") == "item_reference" and str(fields.get("id")) in told:
            REFERENCE.check(fields, param)
            continue  # it stands in what is kept
        message = replace(_item(fields, param, names, is_newest=is_newest), place=param)
        last = messages[-1] if messages else None
        if last is not None and _is_one_turn(last, message):
            messages[-1] = _joined(last, message)
        else:
            messages.append(message)
    return tuple(messages)


def tools_of(tools: object, tool_choice: object) -> Tools | None:
    """What is offered. Raises: RequestError; also for tools that OpenAI runs itself."""
    offered = [tool for entry in entries_of(tools) for tool in _tools(*entry)]
    mode, name = _choice(tool_choice)
    return choose_tools(offered, mode, name=name)


def form_of(text: object) -> Grammar | None:
    """The form that the text field asks for."""
    if text is None:
        return None
    asked = object_of(text, "text")
    TEXT.check(asked, "text")
    wanted = asked.get("format")
    if wanted is None:
        return None
    fields = object_of(wanted, "text.format")
    TEXT_FORMAT.check(fields, "text.format")
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
        case {"type": "function" | "custom", "name": str() as name}:
            TOOL_CHOICE.check(object_of(value, "tool_choice"), "tool_choice")
            return "named", name
        case _:
            rule = "it must be none, auto, required, or an object with type function and name"
            raise _fault("tool_choice", value, rule)


# Tools that OpenAI runs. The model is not told of them, as if it never chose one.
HOSTED = frozenset(
    "web_search web_search_preview file_search code_interpreter image_generation mcp computer "
    "computer_use_preview local_shell shell apply_patch tool_search".split()
)


def _tools(fields: Mapping[str, object], param: str) -> list[Mapping[str, object]]:
    """What the model is told of one entry."""
    kind = fields.get("type")
    if not may_be_called(fields):
        return []
    if kind == "function":
        FUNCTION.check(fields, param)
        return [function_of(_with_output(fields, param), param)]
    if kind == "custom":
        return [custom_of(fields, param)]
    if kind == "namespace":
        members = [each for at, entry in _members(fields, param) for each in _tools(entry, at)]
        return _introduced(members, fields, param)
    if isinstance(kind, str) and _undated(kind) in HOSTED:
        return []
    raise _fault(f"{param}.type", kind, 'only tools of your own, "function", can be called')


def _with_output(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    """A function whose output's schema stands in its description: templates have no other place."""
    if fields.get("output_schema") is None:
        return fields
    schema = object_of(fields["output_schema"], f"{param}.output_schema")
    written = json.dumps(plain(schema, f"{param}.output_schema"), ensure_ascii=False)
    words, own = f"Its output follows this schema: {written}", fields.get("description")
    return {**fields, "description": words if own is None else f"{own}\n{words}"}


def _members(fields: Mapping[str, object], param: str) -> list[tuple[str, Mapping[str, object]]]:
    NAMESPACE.check(fields, param)
    entries = fields.get("tools")
    if not is_row(entries):
        raise _fault(f"{param}.tools", entries, "it must be a list")
    places = [f"{param}.tools[{index}]" for index in range(len(entries))]
    return [(at, object_of(each, at)) for at, each in zip(places, entries, strict=True)]


def _introduced(
    members: Sequence[Mapping[str, object]], fields: Mapping[str, object], param: str
) -> list[Mapping[str, object]]:
    """The tools of a namespace; what is said of all of them stands before the first."""
    words = fields.get("description")
    if words is None or not members:
        return [*members]
    words = _string(words, f"{param}.description")
    function = cast("Mapping[str, object]", members[0]["function"])
    own = function.get("description")
    told = {**function, "description": f"{words}\n{own}" if own else words}
    return [{**members[0], "function": told}, *members[1:]]


def _undated(kind: str) -> str:
    """A tool's type without the date of its version."""
    return re.sub(r"_(\d{4}_\d{2}_\d{2}|\d{8})$", "", kind)


def custom_names(tools: object) -> frozenset[str]:
    """Names of the tools that take free text."""
    entries = [each for each in tools if is_table(each)] if is_row(tools) else []
    return frozenset(str(each.get("name")) for each in entries if each.get("type") == "custom")


def custom_of(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    """A tool that takes free text, as a function of one text."""
    CUSTOM_TOOL.check(fields, param)
    words = fields.get("description")
    if fields.get("format") is not None:
        form = object_of(fields["format"], f"{param}.format")
        CUSTOM_FORMAT.check(form, f"{param}.format")
        if isinstance(form.get("definition"), str):
            words = f"{words or ''}\nThe input follows this {form.get('syntax')} grammar:\n"
            words += str(form["definition"])
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return function_of(
        {"name": fields.get("name"), "description": words, "parameters": schema}, param
    )


def _item(
    fields: Mapping[str, object], param: str, names: dict[str, str], *, is_newest: bool
) -> Message:
    match fields.get("type"):
        case None | "message":
            MESSAGE.check(fields, param)
            return _message(fields, param, is_newest=is_newest)
        case "function_call":
            FUNCTION_CALL.check(fields, param)
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            names[call_id] = name = _string(fields.get("name"), f"{param}.name")
            at = f"{param}.arguments"
            arguments = arguments_of(_string(fields.get("arguments"), at), at)
            return Message(role="assistant", content=(ToolCall(name, arguments, call_id),))
        case "custom_tool_call":
            CUSTOM_CALL.check(fields, param)
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            names[call_id] = name = _string(fields.get("name"), f"{param}.name")
            given: Json = {"input": _string(fields.get("input"), f"{param}.input")}
            return Message(role="assistant", content=(ToolCall(name, given, call_id),))
        case "function_call_output" | "custom_tool_call_output":
            CALL_OUTPUT.check(fields, param)
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            text = _text(fields.get("output"), f"{param}.output", is_newest=False)
            return Message(role="tool", content=(ToolResult(text, call_id, names.get(call_id)),))
        case "reasoning":
            REASONING_ITEM.check(fields, param)
            # Who keeps the thoughts to itself sends their summary at most.
            at = "content" if fields.get("content") else "summary"
            thoughts = fields.get(at)
            text = "" if not thoughts else _text(thoughts, f"{param}.{at}", is_newest=True)
            return Message(role="assistant", content=(), reasoning=text)
        case kind:
            rule = "it must be message, function_call, function_call_output or reasoning"
            if kind == "item_reference":
                rule = "no item with this id was kept before it; send the item itself"
            raise _fault(f"{param}.type", kind, rule)


def _message(fields: Mapping[str, object], param: str, *, is_newest: bool) -> Message:
    role = fields.get("role")
    if role not in ROLES:
        raise _fault(f"{param}.role", role, f"it must be one of {', '.join(ROLES)}")
    is_newest = is_newest and role == "user"
    text = _text(fields.get("content"), f"{param}.content", is_newest=is_newest)
    return Message(role=cast(str, role), content=(Text(text),))


def _text(value: object, param: str, *, is_newest: bool) -> str:
    """A string, or the texts of a list of parts, one behind the other."""
    if isinstance(value, str):
        return value
    if not is_row(value) or not value:
        raise _fault(param, value, "it must be a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        at = f"{param}[{index}]"
        fields = object_of(part, at)
        kind = fields.get("type")
        if kind in _TEXTS:
            TEXT_PART.check(fields, at)
            texts.append(_string(fields.get("text"), f"{at}.text"))
        elif kind == "refusal":
            REFUSAL_PART.check(fields, at)
            texts.append(_string(fields.get("refusal"), f"{at}.refusal"))
        else:
            texts.append(unread(kind, f"{at}.type", is_newest=is_newest))
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
    return RequestError(f"{param} is {quote(value)}; {rule}.", param=param)
