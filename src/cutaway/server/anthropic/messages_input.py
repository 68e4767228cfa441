"""Anthropic's messages, tools and choices as ours. Every fault names the field as it was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.anthropic.messages_fields import (
    DOCUMENT,
    DOCUMENT_SOURCE,
    MESSAGE,
    REDACTED,
    SEARCH_RESULT,
    TEXT,
    THINKING,
    TOOL,
    TOOL_CHOICE,
    TOOL_REFERENCE,
    TOOL_RESULT,
    TOOL_USE,
)
from cutaway.server.told_items import tell_item
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
from cutaway.text.kinds import is_row

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
    last = newest(messages)
    read = [
        replace(_message(each, place, names, is_newest=index >= last), place=place)
        for index, (each, place) in enumerate(zip(messages, places, strict=True))
    ]
    if system is not None:
        texts = tuple(Text(text) for text in _texts(system, "system", is_result=False))
        read.insert(0, Message(role="system", content=texts, place="system"))
    return tuple(read)


def tools_of(tools: object, tool_choice: object) -> tuple[Tools | None, bool]:
    """What is offered, and whether one answer may have several calls."""
    offered = [tool for entry in entries_of(tools) for tool in _tools(*entry)]
    if tool_choice is None:
        return choose_tools(offered, "auto", name=None), True
    fields = object_of(tool_choice, "tool_choice")
    TOOL_CHOICE.check(fields, "tool_choice")
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
    return choose_tools(offered, mode, name=name), single is not True


# Tools whose description is Anthropic's own, as in web_search_20250305: some run there, and of the
# others no schema is sent. The model is not told of them, as if it never chose one.
_HOSTED = re.compile(
    r"(web_search|web_fetch|code_execution|bash|text_editor|computer|memory|tool_search\w*|"
    r"advisor|mcp_toolset)(_\d{8})?"
)


def _tools(fields: Mapping[str, object], param: str) -> list[Mapping[str, object]]:
    """What the model is told of one entry."""
    kind = fields.get("type")
    if kind in (None, "custom"):
        TOOL.check(fields, param)
        if not may_be_called(fields):
            return []
        return [function_of(_with_examples(fields, param), param, schema="input_schema")]
    if isinstance(kind, str) and _HOSTED.fullmatch(kind):
        return []
    raise _fault(f"{param}.type", kind, 'only tools of your own, "custom", can be called')


def _with_examples(fields: Mapping[str, object], param: str) -> Mapping[str, object]:
    """A tool whose examples stand in its description: templates have no other place for them."""
    examples = fields.get("input_examples")
    if not examples:
        return fields
    at = f"{param}.input_examples"
    if not is_row(examples):
        raise _fault(at, examples, "it must be a list of objects")
    lines = [json.dumps(plain(each, at), ensure_ascii=False) for each in examples]
    words = "\n".join(["Examples of its input:", *lines])
    own = fields.get("description")
    return {**fields, "description": words if own is None else f"{own}\n{words}"}


def _message(entry: object, param: str, names: dict[str, str], *, is_newest: bool) -> Message:
    fields = object_of(entry, param)
    MESSAGE.check(fields, param)
    role, content = fields.get("role"), fields.get("content")
    if role not in ("user", "assistant", "system"):
        raise _fault(f"{param}.role", role, "it must be user, assistant or system")
    if isinstance(content, str):
        return Message(role=cast(str, role), content=(Text(content),))
    if role == "assistant" and content is None:
        content = list[object]()  # a model may have had no answer
    if not is_row(content) or not (content or role == "assistant"):
        raise _fault(f"{param}.content", content, "it must be a string or a list of blocks")
    thoughts: list[str] = []
    parts: list[Part] = []
    for index, block in enumerate(content):
        at = f"{param}.content[{index}]"
        block_fields = object_of(block, at)
        kind = block_fields.get("type")
        if kind == "thinking" and role == "assistant":
            THINKING.check(block_fields, at)
            thoughts.append(_string(block_fields.get("thinking"), f"{at}.thinking"))
        elif kind == "redacted_thinking" and role == "assistant":
            REDACTED.check(block_fields, at)
            thoughts.append("")  # nobody but its maker can read it
        else:
            is_new = is_newest and role == "user"
            parts.append(
                _part(block_fields, at, role=cast(str, role), names=names, is_newest=is_new)
            )
    reasoning = "".join(thoughts) if thoughts else None
    return Message(role=cast(str, role), content=tuple(parts), reasoning=reasoning)


def _part(
    fields: Mapping[str, object], param: str, *, role: str, names: dict[str, str], is_newest: bool
) -> Part:
    match fields.get("type"), role:
        case "tool_use", "assistant":
            TOOL_USE.check(fields, param)
            call_id = _string(fields.get("id"), f"{param}.id")
            names[call_id] = name = _string(fields.get("name"), f"{param}.name")
            given = arguments_of(fields.get("input"), f"{param}.input")
            if not isinstance(given, dict | str):
                raise _fault(f"{param}.input", given, "it must be an object")
            return ToolCall(name, given, call_id)
        case "tool_result", "user":
            TOOL_RESULT.check(fields, param)
            call_id = _string(fields.get("tool_use_id"), f"{param}.tool_use_id")
            content = fields.get("content")
            texts = _texts("" if content is None else content, f"{param}.content")
            text = "".join(texts)
            if fields.get("is_error") is True:
                text = f"Error: {text}"
            return ToolResult(text, call_id, names.get(call_id))
        case kind, "assistant" if isinstance(kind, str) and _PROVIDERS.fullmatch(kind):
            return Text(tell_item(kind, fields, param))
        case _:
            return Text(_text(fields, param, is_newest=is_newest))


# What tools that ran at a provider left in a history: told as it is.
_PROVIDERS = re.compile(r"server_tool_use|mcp_tool_use|\w+_tool_result|container_upload|compaction")


def _texts(value: object, param: str, *, is_result: bool = True) -> Sequence[str]:
    """The texts of a string or of a list of blocks: of a result, or of orders."""
    if isinstance(value, str):
        return [value]
    if not is_row(value):
        raise _fault(param, value, "it must be a string or a list of text blocks")
    places = [f"{param}[{index}]" for index in range(len(value))]
    return [
        _text(object_of(item, at), at, is_newest=not is_result)
        for at, item in zip(places, value, strict=True)
    ]


def _text(fields: Mapping[str, object], param: str, *, is_newest: bool) -> str:
    """A block in words."""
    match fields:
        case {"type": "text"}:
            TEXT.check(fields, param)
            return _string(fields.get("text"), f"{param}.text")
        case {"type": "document", "source": {"type": "text", "data": str() as data}}:
            DOCUMENT.check(fields, param)
            at = f"{param}.source"
            DOCUMENT_SOURCE.check(object_of(fields["source"], at), at)
            about = [fields.get("title"), fields.get("context")]
            return "\n".join([*(each for each in about if isinstance(each, str)), data])
        case {"type": "search_result", "content": found}:
            SEARCH_RESULT.check(fields, param)
            head = f"{fields.get('title')} ({fields.get('source')})\n"
            return head + "".join(_texts(found, f"{param}.content"))
        case {"type": "tool_reference", "tool_name": str() as name}:
            TOOL_REFERENCE.check(fields, param)
            return name
        case _:
            return unread(fields.get("type"), f"{param}.type", is_newest=is_newest)


def _string(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise _fault(param, value, "it must be a string")
    return value


def _fault(param: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{param} is {quote(value)}; {rule}.", param=param)
