"""Whether all that was said reaches the prompt, and the form of a history in which it does.

Templates leave out what they do not expect without a word: roles, calls beside text, names. A
history is rendered once more with a mark in each part; a mark that does not come out was left out.
Then other forms of the same history are tried, and where none helps it is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from cutaway.core.errors import RequestError, TemplateError
from cutaway.core.limits import quote
from cutaway.text.call_order import order_results
from cutaway.text.chat_messages import Message, Part, Text, ToolCall, ToolResult
from cutaway.text.kinds import is_table
from cutaway.text.meter import BudgetError
from cutaway.text.prompt import Prompt
from cutaway.text.template import ChatTemplate

Tools = Sequence[Mapping[str, object]]

# Roles that say what a model has to do; OpenAI renamed the one to the other.
_ORDERS = ("system", "developer")
MAX_KEPT = 256  # shapes of histories of which it is known what a template leaves out
# Of all forms that are tried for one request: no client makes us render a long history for ever.
MAX_TRIED_MESSAGES = 20_000


@dataclass(frozen=True)
class History:
    """One form of a conversation: what its template is given.

    in_parts: whether texts are lists of parts, as templates of models that see want them.
    """

    messages: tuple[Message, ...]
    tools: Tools | None
    in_parts: bool = False


@dataclass(frozen=True)
class _Asked:
    """A template, and what it is asked for besides the history."""

    template: ChatTemplate
    extras: Mapping[str, object] | None
    add_generation_prompt: bool

    def render(self, form: History) -> Prompt:
        return self.template.render(
            form.messages,
            tools=form.tools,
            extras=self.extras,
            add_generation_prompt=self.add_generation_prompt,
            in_parts=form.in_parts,
        )


def render_whole(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    extras: Mapping[str, object] | None = None,
    add_generation_prompt: bool = True,
    in_words: Callable[[Sequence[Message]], Sequence[Message]] | None = None,
) -> Prompt:
    """The prompt of the first form of a history that the template writes with all of its parts.

    in_words: the conversation with tools, calls and results told in plain words; the last form.

    What a model thought in earlier turns is its template's to keep or leave out.

    Raises: TemplateError with what the template says of the history as it came; RequestError
    naming the message that it leaves out.
    """
    given = History(order_results(messages), tools)
    fault: TemplateError | RequestError | None = None
    tried = 0
    for form in _forms(given, in_words):
        tried += len(form.messages)
        if fault is not None and tried > MAX_TRIED_MESSAGES:
            break
        asked = _Asked(template, extras, add_generation_prompt)
        try:
            prompt = asked.render(form)
        except TemplateError as error:
            fault = fault or error
            if isinstance(error.__cause__, BudgetError):
                break
            continue
        left_out = _left_out(form, asked)
        if left_out is None:
            return prompt
        fault = fault or left_out
    assert fault is not None, "there is a form, and it failed"
    raise fault


def render_open(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    extras: Mapping[str, object] | None = None,
    in_words: Callable[[Sequence[Message]], Sequence[Message]] | None = None,
) -> Prompt:
    """The prompt up to the last character of the last message, which the model goes on with.

    Raises: as render_whole; RequestError where the last message is no text of the assistant.
    """
    last = messages[-1]
    if last.role != "assistant" or not last.text or len(last.content) != len(last.texts):
        place = last.place or f"messages[{len(messages) - 1}]"
        raise RequestError(
            f"{place} cannot be continued; the last message must be a text of the assistant.",
            param=place,
        )
    end = f"qz{uuid.uuid4().hex}zq"
    marked = replace(last, content=(*last.content, Text(end)))
    prompt = render_whole(
        template,
        (*messages[:-1], marked),
        tools=tools,
        extras=extras,
        add_generation_prompt=False,
        in_words=in_words,
    )
    return prompt.before(prompt.text.rindex(end))


def _forms(
    given: History, in_words: Callable[[Sequence[Message]], Sequence[Message]] | None
) -> Iterator[History]:
    """The history as it came, and then in other words for the same. Each form once."""
    seen: list[History] = []
    for form in _all_forms(given, in_words):
        if form not in seen:
            seen.append(form)
            yield form


def _all_forms(
    given: History, in_words: Callable[[Sequence[Message]], Sequence[Message]] | None
) -> Iterator[History]:
    messages, tools = given.messages, given.tools
    for form in _orders(messages):
        objects, texts = _changed(form, _as_object), _changed(form, _as_text)
        for calls in (form, objects, texts, _apart(objects), _apart(texts)):
            yield History(calls, tools)
            yield History(tuple(map(_named, calls)), tools)
    last = tuple(map(_named, _changed(tuple(map(_ordered, messages)), _as_object)))
    yield History(last, tools, in_parts=True)
    yield History(_apart(last), tools, in_parts=True)
    if tools is None:
        yield History(last, [])  # a template that never comes without tools
    if in_words is not None:
        for form in _orders(tuple(in_words(messages))):
            told = tuple(map(_named, form))
            yield History(told, None)
            yield History(told, [])
            yield History(told, None, in_parts=True)


def _orders(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """The history with its orders, and then whose turn it is, told in other ways."""
    yield messages
    ordered = tuple(map(_ordered, messages))
    yield ordered
    merged = _merged(ordered)
    yield merged
    yield tuple(_as_asked(merged, start=1))
    named = tuple(map(_named, merged))
    yield _joined(tuple(_as_asked(named, start=1)))
    yield _joined(tuple(_as_asked(named)))


def _ordered(message: Message) -> Message:
    """A developer's words in the role that older templates know for them."""
    return replace(message, role="system") if message.role == "developer" else message


def _merged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Orders that stand one behind the other at the start, as one message."""
    orders = 0
    while orders < len(messages) and messages[orders].role in _ORDERS:
        orders += 1
    if orders < 2:
        return messages
    text = "\n\n".join(message.text or "" for message in messages[:orders])
    return (replace(messages[0], content=(Text(text),)), *messages[orders:])


def _as_asked(messages: tuple[Message, ...], *, start: int = 0) -> Iterator[Message]:
    """Orders from there on in the role of the user, where they stand.

    Many templates take orders at the start alone, some none at all; programs send them amid.
    """
    for index, message in enumerate(messages):
        is_order = index >= start and message.role in _ORDERS
        yield replace(message, role="user") if is_order else message


def _joined(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Neighbours of one role as one message: many templates want user and assistant in turns."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is None or not _may_join(last, message):
            joined.append(message)
            continue
        between = (Text("\n\n"),) if last.texts and message.texts else ()
        joined[-1] = replace(last, content=(*last.content, *between, *message.content))
    return tuple(joined)


def _may_join(last: Message, message: Message) -> bool:
    """Whether two messages are of one speaker, and one message of both says things in order."""
    if last.role != message.role or message.role not in ("user", "assistant"):
        return False
    if last.name != message.name or message.reasoning is not None:
        return False
    if any(isinstance(part, ToolResult) for part in message.content):
        return False  # results come before the words of their message
    has_called = any(isinstance(part, ToolCall) for part in last.content)
    return not (has_called and message.texts)  # and calls behind them


def _as_object(call: ToolCall) -> ToolCall:
    """Arguments that are no object, within one: a call may have been cut off amid its words."""
    return (
        call if is_table(call.arguments) else replace(call, arguments={"arguments": call.arguments})
    )


def _as_text(call: ToolCall) -> ToolCall:
    """Arguments as JSON, as the API has them: some templates add them to their own text."""
    if isinstance(call.arguments, str):
        return call
    return replace(call, arguments=json.dumps(call.arguments, ensure_ascii=False))


def _changed(
    messages: tuple[Message, ...], change: Callable[[ToolCall], ToolCall]
) -> tuple[Message, ...]:
    """The history with each of its calls changed."""

    def changed(message: Message) -> Message:
        parts = (change(part) if isinstance(part, ToolCall) else part for part in message.content)
        return replace(message, content=tuple(parts))

    return tuple(map(changed, messages))


def _apart(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What a model says beside its calls as a message of its own."""

    def split(message: Message) -> Iterator[Message]:
        texts = tuple(part for part in message.content if isinstance(part, Text))
        calls = tuple(part for part in message.content if isinstance(part, ToolCall))
        if not (message.text and calls):
            yield message
            return
        yield replace(message, content=texts)
        yield replace(message, content=calls, reasoning=None)

    return tuple(part for message in messages for part in split(message))


def _named(message: Message) -> Message:
    """Whoever speaks, told in front of the words."""
    if message.name is None or message.text is None:
        return message
    return replace(message, content=(Text(f"{message.name}: "), *message.content), name=None)


def _left_out(form: History, asked: _Asked) -> RequestError | None:
    """What to say of the first part that does not reach the prompt."""
    others = (form.in_parts, asked.add_generation_prompt, repr(asked.extras))
    shape = (tuple(map(_shape, form.messages)), bool(form.tools), form.tools is None, others)
    known = asked.template.known_shapes
    if shape not in known:
        if len(known) >= MAX_KEPT:
            known.clear()
        known[shape] = _missing(form, asked)
    missing = known[shape]
    return None if missing is None else _fault(form, missing)


def _shape(message: Message) -> tuple[object, ...]:
    """What decides whether a template writes a message, without its words."""
    parts = tuple(
        (type(part), part.text.strip() == "")
        if isinstance(part, Text | ToolResult)
        else (type(part), is_table(part.arguments), bool(part.arguments))
        for part in message.content
    )
    return message.role, parts, message.name is None, message.reasoning is None


def _missing(form: History, asked: _Asked) -> tuple[int, str] | None:
    """The first message, by number, of which a part is left out, and which; -1 are the tools."""
    marks = _Marks()
    messages = tuple(marks.mark(index, message) for index, message in enumerate(form.messages))
    tools = [marks.tool()] if form.tools else form.tools
    try:
        text = asked.render(replace(form, messages=messages, tools=tools)).text.lower()
    except TemplateError:
        return None  # it reads the words themselves, and nothing can be said without them
    return next((place for mark, place in marks.places.items() if mark not in text), None)


class _Marks:
    """Words that stand nowhere else, and the part that each is in."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[int, str]] = {}
        self._numbers = count()

    def mark(self, index: int, message: Message) -> Message:
        """The message with a mark for each of its parts."""
        parts: list[Part] = []
        if message.text is not None:
            # Blanks alone may be stripped, and nothing is lost with them.
            is_said = bool(message.text.strip())
            parts.append(Text(self._mark(index, "content") if is_said else message.text))
        for part in message.content:
            if isinstance(part, ToolCall):
                parts.append(self._marked_call(index, part))
            elif isinstance(part, ToolResult):
                is_said = bool(part.text.strip())
                text = self._mark(index, "content") if is_said else part.text
                parts.append(replace(part, text=text))
        is_speaking = message.name is not None and message.text is not None
        name = self._mark(index, "name") if is_speaking else message.name
        reasoning = None if message.reasoning is None else "thought"
        return replace(message, content=tuple(parts), name=name, reasoning=reasoning)

    def tool(self) -> Mapping[str, object]:
        """A function whose name is a mark."""
        schema = {"type": "object", "properties": {"a": {"type": "string", "description": "a"}}}
        function = {"name": self._mark(-1, "tools"), "description": "a", "parameters": schema}
        return {"type": "function", "function": function}

    def _marked_call(self, index: int, call: ToolCall) -> ToolCall:
        name = self._mark(index, "tool_calls")
        if is_table(call.arguments):
            arguments = {"a": self._mark(index, "tool_calls")} if call.arguments else {}
            return replace(call, name=name, arguments=arguments)
        return replace(call, name=name, arguments=self._mark(index, "tool_calls"))

    def _mark(self, index: int, part: str) -> str:
        mark = f"qz{next(self._numbers)}zq"
        self.places[mark] = (index, part)
        return mark


def _fault(form: History, missing: tuple[int, str]) -> RequestError:
    index, part = missing
    if index < 0:
        return RequestError(
            "tools do not reach the prompt: this model's chat template leaves them out here. "
            "Tell of them in a message.",
            param="tools",
        )
    message = form.messages[index]
    place = message.place or f"messages[{index}]"
    advice = {
        "content": "Send it in another role, as system or user.",
        "name": "Say in the text who speaks.",
        "tool_calls": "Tell of the call in the text of a message.",
    }[part]
    return RequestError(
        f"{place}, of the role {quote(message.role)}, does not reach the prompt whole: this "
        f"model's chat template leaves out its {part}. {advice}",
        param=place,
    )
