"""Items and text formats of OpenAI's Responses as ours; faults name fields as they came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import quote
from cutaway.server.constraints import FORMATS, TEXT_FORMAT, schema_grammar
from cutaway.server.openai.responses_fields import (
    AGENT_MESSAGE,
    CALL_OUTPUT,
    CUSTOM_CALL,
    FUNCTION_CALL,
    MESSAGE,
    PROVIDERS_ITEMS,
    REASONING_ITEM,
    REFERENCE,
    REFUSAL_PART,
    TEXT,
    TEXT_PART,
)
from cutaway.server.openai.responses_tools import BRINGS_TOOLS, Offer
from cutaway.server.told_items import UNREADABLE, is_packed, tell_item
from cutaway.server.tools import object_of
from cutaway.text.chat_messages import (
    Json,
    Message,
    Part,
    Text,
    ToolCall,
    ToolResult,
    arguments_of,
    newest,
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
    offer: Offer | None = None,
) -> tuple[Message, ...]:
    """The conversation; instructions are a system message at its start.

    earlier: items of turns before, as the server kept them.
    place:   the field that holds what is given.
    offer:   tools, under whose names calls are told.

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
        if fields.get("type") in BRINGS_TOOLS:
            continue  # they are offered, and nobody said anything
        read = _item(fields, param, names, offer=offer or Offer(), is_newest=is_newest)
        message = replace(read, place=param)
        last = messages[-1] if messages else None
        if last is not None and _is_one_turn(last, message):
            messages[-1] = _joined(last, message)
        else:
            messages.append(message)
    if not messages:
        raise _fault(place, given, "nothing is said in it; it needs a message")
    return tuple(messages)


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


def _item(
    fields: Mapping[str, object],
    param: str,
    names: dict[str, str],
    *,
    offer: Offer,
    is_newest: bool,
) -> Message:
    match fields.get("type"):
        case None | "message":
            MESSAGE.check(fields, param)
            return _message(fields, param, is_newest=is_newest)
        case "function_call":
            FUNCTION_CALL.check(fields, param)
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            name = _string(fields.get("name"), f"{param}.name")
            names[call_id] = name = offer.told_name(name, _space(fields, param))
            at = f"{param}.arguments"
            arguments = arguments_of(_string(fields.get("arguments"), at), at)
            return Message(role="assistant", content=(ToolCall(name, arguments, call_id),))
        case "custom_tool_call":
            CUSTOM_CALL.check(fields, param)
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            name = _string(fields.get("name"), f"{param}.name")
            names[call_id] = name = offer.told_name(name, _space(fields, param))
            given: Json = {"input": _string(fields.get("input"), f"{param}.input")}
            return Message(role="assistant", content=(ToolCall(name, given, call_id),))
        case "function_call_output" | "custom_tool_call_output":
            CALL_OUTPUT.check(fields, param)
            call_id = _string(fields.get("call_id"), f"{param}.call_id")
            output = fields.get("output")
            if "output" in fields and output in (None, []):
                output = ""  # a function may have no result
            text = _text(output, f"{param}.output", is_newest=False)
            return Message(role="tool", content=(ToolResult(text, call_id, names.get(call_id)),))
        case "reasoning":
            REASONING_ITEM.check(fields, param)
            # Who keeps the thoughts to itself sends their summary at most.
            at = "content" if fields.get("content") else "summary"
            thoughts = fields.get(at)
            text = "" if not thoughts else _text(thoughts, f"{param}.{at}", is_newest=True)
            return Message(role="assistant", content=(), reasoning=text)
        case "agent_message":
            AGENT_MESSAGE.check(fields, param)
            return _passed_on(fields, param)
        case str(kind) if kind in PROVIDERS_ITEMS:
            return _told_as_it_is(kind, fields, param)
        case kind:
            rule = "it must be message, function_call, function_call_output or reasoning"
            if kind == "item_reference":
                rule = "no item with this id was kept before it; send the item itself"
            raise _fault(f"{param}.type", kind, rule)


def _space(fields: Mapping[str, object], param: str) -> str | None:
    """The namespace of a call's tool."""
    value = fields.get("namespace")
    return None if value is None else _string(value, f"{param}.namespace")


def _message(fields: Mapping[str, object], param: str, *, is_newest: bool) -> Message:
    role = fields.get("role")
    if role not in ROLES:
        raise _fault(f"{param}.role", role, f"it must be one of {', '.join(ROLES)}")
    is_newest = is_newest and role == "user"
    content = fields.get("content")
    if role == "assistant" and content in (None, []):
        content = ""  # a model may have had no answer
    text = _text(content, f"{param}.content", is_newest=is_newest)
    return Message(role=cast(str, role), content=(Text(text),))


def _passed_on(fields: Mapping[str, object], param: str) -> Message:
    """What one agent of Codex says to another: a task, or an answer to one."""
    parts = fields.get("content")
    if not is_row(parts):
        raise _fault(f"{param}.content", parts, "it must be a list of text parts")
    words = [
        _secret(part.get("encrypted_content"), f"{param}.content[{index}].encrypted_content")
        if is_table(part) and part.get("type") == "encrypted_content"
        else _part(part, f"{param}.content[{index}]", is_newest=False)
        for index, part in enumerate(parts)
    ]
    names = (fields.get("author"), fields.get("recipient"))
    head = " ".join(
        f"{word} {name}"
        for word, name in zip(("from", "to"), names, strict=True)
        if isinstance(name, str)
    )
    text = "".join(words)
    return Message(role="user", content=(Text(f"[{head}]\n{text}" if head else text),))


def _secret(value: object, param: str) -> str:
    """Text in a field for secrets: Codex puts plain words there for those who keep none."""
    text = _string(value, param)
    return UNREADABLE if is_packed(text) else text


def _told_as_it_is(kind: str, fields: Mapping[str, object], param: str) -> Message:
    role = "user" if kind.endswith(("_output", "_response")) else "assistant"
    text = tell_item(kind, fields, param, without=("id", "type", "status"))
    return Message(role=role, content=(Text(text),))


def _text(value: object, param: str, *, is_newest: bool) -> str:
    """A string, or the texts of a list of parts, one behind the other."""
    if isinstance(value, str):
        return value
    if not is_row(value) or not value:
        raise _fault(param, value, "it must be a string or a list of text parts")
    return "".join(
        _part(part, f"{param}[{index}]", is_newest=is_newest) for index, part in enumerate(value)
    )


def _part(part: object, param: str, *, is_newest: bool) -> str:
    fields = object_of(part, param)
    kind = fields.get("type")
    if kind in _TEXTS:
        TEXT_PART.check(fields, param)
        return _string(fields.get("text"), f"{param}.text")
    if kind == "refusal":
        REFUSAL_PART.check(fields, param)
        return _string(fields.get("refusal"), f"{param}.refusal")
    return unread(kind, f"{param}.type", is_newest=is_newest)


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
