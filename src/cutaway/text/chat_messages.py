"""One form for chat messages, whatever API they came by: checked, and turned back for templates.

Knows no template and no token. Every fault is a RequestError that names the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote, similar
from cutaway.text.chat_fields import (
    CALLED_FUNCTION,
    MESSAGE,
    REASONING_FIELDS,
    REFUSAL_PART,
    TEXT_PART,
    THOUGHT_LISTS,
    TOOL_CALL,
)
from cutaway.text.kinds import is_row, is_table

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_DEPTH = 64  # of nested lists and dicts; deeper than any published tool schema
MAX_INT_BITS = 256  # longer integers turn arithmetic in a template into work without bound


@dataclass(frozen=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """The model asked for a function. Arguments are an object, or the model's words if not JSON."""

    name: str
    arguments: Json
    call_id: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a function answered."""

    text: str
    call_id: str | None = None
    name: str | None = None


Part = Text | ToolCall | ToolResult


@dataclass(frozen=True)
class Message:
    """One turn. Several texts are one text without anything between them.

    place: where it stands in its request, for faults.
    """

    role: str
    content: tuple[Part, ...]
    name: str | None = None
    reasoning: str | None = None  # what a reasoning model thought before it answered
    place: str = field(default="", compare=False)

    @property
    def texts(self) -> list[str]:
        """What is said in words, part by part."""
        return [part.text for part in self.content if isinstance(part, Text)]

    @property
    def text(self) -> str | None:
        """All texts in a row; None where there is none, which differs from an empty one."""
        return "".join(self.texts) if self.texts else None


# A choice from a list and no free text: what a template makes of one of these is its own word.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

# Other APIs' and servers' words for a text, with where it stands.
_TEXT_PARTS = {kind: "text" for kind in ("text", "input_text", "output_text")}
_TEXT_PARTS["refusal"] = "refusal"
# Whose turn may be over without a word: a model's, and a function's.
_SILENT = ("assistant", "tool")
# What this model cannot read. The newest question must not rest on it; what came before is told
# in words, or a conversation with one picture could never go on.
_UNREAD = frozenset(
    "image image_url input_image audio input_audio audio_url video video_url file input_file "
    "document".split()
)


def from_dicts(messages: object) -> tuple[Message, ...]:
    """Messages in the form of OpenAI's chat API.

    Content is a string or a list of text parts. null and an empty list are nothing said: a model
    may have had no answer and a function no result, but a question has words. Of other fields null
    and an empty list count as absent; one that is unknown and set is refused.

    Raises: RequestError naming the field, as in messages[2].content[0].type.
    """
    if not is_row(messages) or not messages:
        raise _fault("messages", messages, "it must be a list of at least one message")
    last = newest(messages)
    read: list[Message] = []
    for index, item in enumerate(messages):
        param = f"messages[{index}]"
        read.append(_message(item, param, is_newest=index >= last))
        if is_table(item) and item.get("prefix"):
            _check_prefix(item, param, is_last=index == len(messages) - 1)
    return tuple(read)


def newest(messages: Sequence[object]) -> int:
    """Where the newest message of the user stands; what is left out of it is refused."""
    users = [index for index, item in enumerate(messages) if _role_of(item) == "user"]
    return users[-1] if users else 0


def _role_of(item: object) -> object:
    return item.get("role") if is_table(item) else None


def _check_prefix(item: Mapping[object, object], param: str, *, is_last: bool) -> None:
    """As Mistral and DeepSeek have it: the model goes on with the assistant's last message."""
    place = f"{param}.prefix"
    if item["prefix"] is not True:
        raise _fault(place, item["prefix"], "it must be true or false")
    if not is_last or item.get("role") != "assistant":
        raise _fault(place, True, "only the assistant's last message can be continued")


def unread(kind: object, param: str, *, is_newest: bool) -> str:
    """Words in place of what this model cannot read.

    Raises: RequestError naming param, in the newest message of the user, or for no known kind.
    """
    if is_newest or not isinstance(kind, str) or kind not in _UNREAD:
        raise _fault(param, kind, 'this model reads parts of type "text" only')
    return f"[{kind}: not shown, since this model reads text alone]"


def to_dicts(messages: Sequence[Message]) -> list[dict[str, Json]]:
    """The dicts that chat templates expect: as transformers hands them over, absent keys left out.

    Each tool result becomes a message of the role "tool" of its own.
    """
    dicts: list[dict[str, Json]] = []
    for message in messages:
        results = [part for part in message.content if isinstance(part, ToolResult)]
        dicts += [_result_dict(result) for result in results]
        if len(results) < len(message.content) or not results:
            dicts.append(_message_dict(message))
    return dicts


def plain(value: object, param: str, *, depth: int = MAX_DEPTH) -> Json:
    """A copy made of nothing but JSON's own types, with strings that UTF-8 can write.

    Raises: RequestError naming param for any other type, a lone surrogate, NaN, infinity, an
    integer above 256 bits, or more than MAX_DEPTH levels.
    """
    if isinstance(value, str):
        return _string(value, param)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_INT_BITS:
            raise RequestError(
                f"{param} is an integer of {value.bit_length()} bits; "
                f"at most {MAX_INT_BITS} are allowed.",
                param=param,
            )
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _fault(param, value, "numbers must be finite")
        return float(value)
    if depth == 0:
        raise _too_deep(param)
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return {_string(key, param): plain(item, param, depth=depth - 1) for key, item in entries}
    if is_row(value):
        return [plain(item, param, depth=depth - 1) for item in value]
    raise _fault(param, value, "only JSON's types are allowed")


def _message(item: object, param: str, *, is_newest: bool) -> Message:
    fields = _mapping(item, param)
    MESSAGE.check(fields, param)
    role = _role(fields.get("role"), f"{param}.role")
    message = Message(
        role=role,
        content=_content(fields, role, param, is_newest=is_newest and role == "user"),
        name=_string(fields["name"], f"{param}.name") if "name" in fields else None,
        reasoning=_reasoning(fields, param),
        place=param,
    )
    if not message.content and message.reasoning is None and role not in _SILENT:
        raise _fault(f"{param}.content", None, "it must be a string or a list of text parts")
    return message


def _reasoning(fields: Mapping[str, object], param: str) -> str | None:
    """What was thought, by the first field that says it."""
    for name in REASONING_FIELDS:
        if name in fields:
            return _string(fields[name], f"{param}.{name}")
    for name in THOUGHT_LISTS:
        if name in fields:
            place = f"{param}.{name}"
            if not is_row(fields[name]):
                raise _fault(place, fields[name], "it must be a list of thoughts")
            thoughts = [_mapping(each, place) for each in cast("Sequence[object]", fields[name])]
            kinds = ("text", "thinking", "summary")  # and what its maker alone can read
            words = [each[kind] for each in thoughts for kind in kinds if kind in each]
            return "".join(_string(word, place) for word in words) if words else None
    return None


def _role(value: object, param: str) -> str:
    """A role. Some models know more than ROLES, but none knows a misspelt one of these."""
    role = _string(value, param)
    near = similar(role.lower(), ROLES, cutoff=0.8) if role not in ROLES else ()
    if near:
        raise RequestError(f"{param} is {quote(role)}; did you mean {near[0]}?", param=param)
    return role


def _content(
    fields: Mapping[str, object], role: str, param: str, *, is_newest: bool
) -> tuple[Part, ...]:
    has_content = "content" in fields and not (role in _SILENT and fields["content"] == [])
    content = fields["content"] if has_content else fields.get("refusal")
    texts = () if content is None else _texts(content, f"{param}.content", is_newest=is_newest)
    if role == "tool":
        call_id = fields.get("tool_call_id")
        name = fields.get("name")
        result = ToolResult(
            text="".join(part.text for part in texts),
            call_id=None if call_id is None else _string(call_id, f"{param}.tool_call_id"),
            name=None if name is None else _string(name, f"{param}.name"),
        )
        return (result,)
    return (*texts, *_tool_calls(fields.get("tool_calls", ()), f"{param}.tool_calls"))


def _texts(content: object, param: str, *, is_newest: bool) -> tuple[Text, ...]:
    if isinstance(content, str):
        return (Text(_string(content, param)),)
    if not is_row(content) or not content:
        raise _fault(param, content, "it must be a string or a list of text parts")
    return tuple(
        _text_part(part, f"{param}[{index}]", is_newest=is_newest)
        for index, part in enumerate(content)
    )


def _text_part(part: object, param: str, *, is_newest: bool) -> Text:
    fields = _mapping(part, param)
    kind = fields.get("type")
    name = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if name is None:
        return Text(unread(kind, f"{param}.type", is_newest=is_newest))
    (REFUSAL_PART if name == "refusal" else TEXT_PART).check(fields, param)
    return Text(_string(fields.get(name), f"{param}.{name}"))


def _tool_calls(calls: object, param: str) -> tuple[ToolCall, ...]:
    if not is_row(calls):
        raise _fault(param, calls, "it must be a list of tool calls")
    return tuple(_tool_call(call, f"{param}[{index}]") for index, call in enumerate(calls))


def _tool_call(call: object, param: str) -> ToolCall:
    fields = _mapping(call, param)
    if fields.get("type", "function") != "function":
        raise _fault(f"{param}.type", fields["type"], 'it must be "function"')
    TOOL_CALL.check(fields, param)
    function = _mapping(fields.get("function"), f"{param}.function")
    CALLED_FUNCTION.check(function, f"{param}.function")
    call_id = fields.get("id")
    return ToolCall(
        name=_string(function.get("name"), f"{param}.function.name"),
        arguments=arguments_of(function.get("arguments"), f"{param}.function.arguments"),
        call_id=None if call_id is None else _string(call_id, f"{param}.id"),
    )


def arguments_of(arguments: object, param: str) -> Json:
    """Arguments of a call. Templates want an object, and clients send its JSON.

    Nothing, blanks and null are no arguments. A model may have written something else: its words.

    Raises: RequestError naming param.
    """
    if not isinstance(arguments, str):
        return {} if arguments is None else plain(arguments, param)
    text = _string(arguments, param)
    if not text.strip() or text.strip() == "null":
        return {}
    try:
        parsed: object = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text
    except RecursionError:
        raise _too_deep(param) from None
    return plain(parsed, param) if is_table(parsed) else text


def _refuse_constant(name: str) -> object:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's


def _message_dict(message: Message) -> dict[str, Json]:
    fields: dict[str, Json] = {"role": message.role}
    if message.text is not None:
        fields["content"] = message.text
    if message.name is not None:
        fields["name"] = message.name
    calls = [part for part in message.content if isinstance(part, ToolCall)]
    if calls:
        fields["tool_calls"] = [_call_dict(call) for call in calls]
    if message.reasoning is not None:
        # Two names for one thing: most templates read the first, gpt-oss the second.
        fields["reasoning_content"] = fields["thinking"] = message.reasoning
    return fields


def _call_dict(call: ToolCall) -> dict[str, Json]:
    fields: dict[str, Json] = {} if call.call_id is None else {"id": call.call_id}
    fields["type"] = "function"
    fields["function"] = {"name": call.name, "arguments": call.arguments}
    return fields


def _result_dict(result: ToolResult) -> dict[str, Json]:
    fields: dict[str, Json] = {"role": "tool", "content": result.text}
    if result.name is not None:
        fields["name"] = result.name
    if result.call_id is not None:
        fields["tool_call_id"] = result.call_id
    return fields


def _mapping(value: object, param: str) -> Mapping[str, object]:
    """A dict's fields without those that are null or an empty list."""
    if not isinstance(value, Mapping):
        raise _fault(param, value, "it must be an object")
    entries = cast("Mapping[object, object]", value).items()
    return {
        _string(key, param): item
        for key, item in entries
        if item is not None and not (key != "content" and item == [])
    }


def _string(value: object, param: str) -> str:
    """An exact str that UTF-8 can write."""
    if not isinstance(value, str):
        raise _fault(param, value, "it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _fault(param, value, "a lone surrogate stands in it; use valid Unicode") from None
    return str.__str__(value)


def _too_deep(param: str) -> RequestError:
    return RequestError(
        f"{param} is nested too deeply; at most {MAX_DEPTH} levels are allowed.", param=param
    )


def _fault(param: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{param} is {quote(value)}; {rule}.", param=param)
