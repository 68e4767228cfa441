"""Tools told in plain words, for chat templates that know none: they would leave them out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from cutaway.server.tools import Tools
from cutaway.stream.formats import ToolFormat
from cutaway.stream.tool_grammar import tools_message
from cutaway.text.chat_messages import Message, Text, ToolCall, ToolResult


def tell_tools(
    messages: Sequence[Message], tools: Tools | None, tool_format: ToolFormat
) -> tuple[Message, ...]:
    """The same conversation without parts that a template must know tools to write.

    Tools stand in the system message, calls in the model's own words as it would have written
    them, and results in a message of the user.
    """
    plain = [_plain(message, tool_format) for message in messages]
    if tools is None:
        return tuple(plain)
    words = tools_message(tools.functions, tool_format)
    if plain and plain[0].role in ("system", "developer"):
        first = replace(plain[0], content=(*plain[0].content, Text(f"\n\n{words}")))
        return (first, *plain[1:])
    return (Message(role="system", content=(Text(words),)), *plain)


def _plain(message: Message, tool_format: ToolFormat) -> Message:
    if all(isinstance(part, Text) for part in message.content):
        return message
    texts: list[str] = [message.text] if message.text else []
    for part in message.content:
        if isinstance(part, ToolCall):
            texts.append(_call(part, tool_format))
        elif isinstance(part, ToolResult):
            texts.append(f"Result{f' of {part.name}' if part.name else ''}:\n{part.text}")
    role = "user" if message.role == "tool" else message.role
    return replace(message, role=role, content=(Text("\n".join(texts)),))


def _call(call: ToolCall, tool_format: ToolFormat) -> str:
    fields = {"name": call.name, tool_format.arguments: call.arguments}
    text = json.dumps(fields, ensure_ascii=False)
    if tool_format.body == "objects":
        text = f"[{text}]"
    return "\n".join(line for line in (tool_format.opening, text, tool_format.closing) if line)
