"""A conversation to be answered, whatever API it came by: prompt, grammar, and how it is read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import cast

from cutaway.core.errors import ContextLengthError, RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission.request_checks import check_request
from cutaway.server.entry.door import HttpCall
from cutaway.server.route_context import Context
from cutaway.server.tool_words import tell_tools
from cutaway.server.tools import Tools
from cutaway.stream.answer import AnswerParser
from cutaway.stream.formats import (
    ReasoningFormat,
    ToolFormat,
    choose_format,
    choose_reasoning,
    knows_tools,
)
from cutaway.stream.text_events import CallEnd, CallStart, Content, Event, ParsedAnswer, gather
from cutaway.stream.tool_grammar import Tool, call_grammar
from cutaway.text.call_order import order_results
from cutaway.text.chat_messages import Message, ToolCall
from cutaway.text.prompt import Prompt, encode
from cutaway.text.reach import render_open, render_whole


@dataclass(frozen=True, kw_only=True)
class ChatInput:
    """What was said, and what may come next.

    messages_field: the request's field that has them.
    form:        what the answer is held to, where it is no call.
    form_field:  the request's field that asks for it.
    schema_field: where a tool has the schema of its arguments.
    extras:      further variables of the template.
    is_parallel: whether one answer may have several calls.
    is_open:     whether the model goes on with the last message instead of a new one.
    has_opening: whether the prompt ends with the opening of the model's own message.
    """

    messages: Sequence[Message]
    messages_field: str = "messages"
    tools: Tools | None = None
    form: Grammar | None = None
    form_field: str = "response_format"
    schema_field: str = "function.parameters"
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    is_parallel: bool = True
    is_open: bool = False
    has_opening: bool = True


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """How answers to one conversation are read."""

    tool_format: ToolFormat | None
    tools: Tools | None
    reasoning: ReasoningFormat | None
    is_reasoning: bool  # the prompt has begun it already
    is_parallel: bool

    def reader(self) -> ChoiceReader:
        """A reader of one choice."""
        if self.tool_format is None and self.reasoning is None:
            return ChoiceReader(None, is_parallel=True)
        parser = AnswerParser(
            self.tool_format,
            tools=() if self.tools is None else self.tools.names,
            reasoning=self.reasoning,
            is_reasoning=self.is_reasoning,
            is_forced=self.tools is not None and self.tools.is_forced,
        )
        return ChoiceReader(parser, is_parallel=self.is_parallel)

    def whole(self, text: str) -> ParsedAnswer:
        """An answer that is there already."""
        reader = self.reader()
        return gather([*reader.push(text), *reader.finish()])

    def watch(self) -> Callable[[Delta], bool] | None:
        """Tells of each delta whether its choice has said all that it may: its one call.

        None where nothing ends an answer but the model. With a grammar the grammar does.
        """
        if self.is_parallel or self.tools is None or self.tools.is_forced:
            return None
        readers: dict[int, ChoiceReader] = {}

        def is_over(delta: Delta) -> bool:
            reader = readers.setdefault(delta.choice, self.reader())
            reader.push(delta.text)
            return reader.is_over

        return is_over

    def call_id(self, prefix: str = "call_") -> str:
        """A new name for a call. Templates of Mistral take nine letters and digits alone."""
        is_mistral = self.tool_format is not None and self.tool_format.name == "mistral"
        return uuid.uuid4().hex[:9] if is_mistral else f"{prefix}{uuid.uuid4().hex[:24]}"


class ChoiceReader:
    """Cuts one choice into events, as its text comes. Without a parser all is content."""

    def __init__(self, parser: AnswerParser | None, *, is_parallel: bool) -> None:
        self._parser = parser
        self._is_parallel = is_parallel
        self.is_over = False  # the one call that is allowed is whole
        self.has_calls = False

    def push(self, text: str) -> list[Event]:
        """What is known now and was not before."""
        if self._parser is None:
            return [Content(text)] if text else []
        return self._kept(self._parser.push(text))

    def finish(self) -> list[Event]:
        """What still waited, when no more comes."""
        return [] if self._parser is None else self._kept(self._parser.finish())

    def _kept(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if self.is_over:
                break
            kept.append(event)
            self.has_calls = self.has_calls or isinstance(event, CallStart)
            self.is_over = isinstance(event, CallEnd) and not self._is_parallel
        return kept


@dataclass(frozen=True, kw_only=True)
class PreparedChat:
    """A conversation, ready for the engine.

    sampling: parameters that follow from it and stand above the request's own.
    tokenize: seconds from the prompt's text to its token ids.
    """

    token_ids: tuple[int, ...]
    sampling: Mapping[str, object]
    answer_format: AnswerFormat
    grammar_field: str | None
    tokenize: float


def prepare_chat(chat_input: ChatInput, context: Context) -> PreparedChat:
    """Write the prompt and choose what the answer is held to and how it is read.

    With a grammar a model cannot reason first, so no reasoning is looked for.

    Raises: RequestError naming the field; ContextLengthError for what is seen to be too long
    before it is written; TemplateError.
    """
    check_may_fit(chat_input, context)
    tools, form = chat_input.tools, chat_input.form
    source, control = context.template_source, context.tokenizer.control_tokens
    tool_format = choose_format(source)
    prompt = _prompt(chat_input, context, tool_format)
    grammar = _held(chat_input, context, tool_format)
    if grammar is not None and chat_input.is_open:
        raise RequestError(
            f"{chat_input.messages[-1].place} is to be continued and the answer held to a form; a "
            "form holds an answer from its first token. Leave one out.",
            param=chat_input.messages[-1].place,
        )
    reasoning = choose_reasoning(source) if grammar is None else None
    markers: set[str] = set() if tools is None else set(tool_format.markers_among(control))
    if reasoning is not None:
        markers |= {reasoning.opening, reasoning.closing} & set(control)
    sampling: dict[str, object] = {"grammar": grammar}
    if markers:
        sampling["skip_special_tokens"] = False  # else they are in no text, and nothing is found
    field_of_grammar = chat_input.form_field if form is not None else "tools"
    began = perf_counter()
    token_ids = tuple(
        encode(
            prompt,
            context.tokenizer.encode,
            control,
            encode_inner=partial(context.tokenizer.encode, is_start=False),
        )
    )
    return PreparedChat(
        token_ids=token_ids,
        tokenize=perf_counter() - began,
        sampling=sampling,
        grammar_field=None if grammar is None else field_of_grammar,
        answer_format=AnswerFormat(
            tool_format=None if tools is None else tool_format,
            tools=tools,
            reasoning=reasoning,
            is_reasoning=reasoning is not None and reasoning.is_open_after(prompt.text),
            is_parallel=chat_input.is_parallel,
        ),
    )


def check_may_fit(chat_input: ChatInput, context: Context) -> None:
    """Raise ContextLengthError for a conversation that is too long however it is written.

    A template takes 1.3 ms for a message: 20,000 of them were refused after 26 s.
    """
    messages, most = chat_input.messages, context.service.model.max_length
    # Every text reaches the prompt (text/reach.py), but what an answer's model thought.
    texts = [
        part.text
        for message in messages
        if message.role != "assistant"
        for part in message.content
        if not isinstance(part, ToolCall)
    ]
    is_long = sum(map(len, texts)) > most
    least = max(len(messages), context.fewest_tokens.of(texts) if is_long else 0)
    if least > most:
        field_of_messages = chat_input.messages_field
        raise ContextLengthError(
            f"{field_of_messages} has {len(messages)} messages, which are at least {least} tokens; "
            f"the longest sequence is {most} tokens, prompt and answer together. Send fewer or "
            "shorter messages.",
            param=field_of_messages,
        )


def start_answer(prepared: PreparedChat, token_ids: Sequence[int], *, param: str) -> PreparedChat:
    """The chat with the first tokens of its answer given: the model goes on from them.

    Ids, not text: cut anew, a text may become other tokens than those it was read from.

    Raises: RequestError naming param, where the answer is held to a form: its rule begins with it.
    """
    if prepared.grammar_field is not None:
        raise RequestError(
            f"{param} and {prepared.grammar_field} are both given; a form holds an answer from its "
            "first token. Leave one out.",
            param=param,
        )
    return replace(prepared, token_ids=(*prepared.token_ids, *token_ids))


def _prompt(chat_input: ChatInput, context: Context, tool_format: ToolFormat) -> Prompt:
    messages, tools = order_results(chat_input.messages), chat_input.tools
    in_words = partial(tell_tools, tools=tools, tool_format=tool_format)
    has_words = not knows_tools(context.template_source)
    messages = in_words(messages) if has_words else messages
    offered = None if tools is None or has_words else tools.offered
    if chat_input.is_open:
        return render_open(
            context.template, messages, tools=offered, extras=chat_input.extras, in_words=in_words
        )
    return render_whole(
        context.template,
        messages,
        tools=offered,
        extras=chat_input.extras,
        add_generation_prompt=chat_input.has_opening,
        in_words=in_words,
    )


def _held(chat_input: ChatInput, context: Context, tool_format: ToolFormat) -> Grammar | None:
    """What the answer is held to: a call that must be, a form, or either where both may come."""
    tools, form = chat_input.tools, chat_input.form
    if tools is None or not (tools.is_forced or form is not None):
        return form
    schemas = [
        Tool(cast(str, each["name"]), cast("Mapping[str, object] | None", each.get("parameters")))
        for each in tools.functions
    ]
    places = {
        f"tools[{index}].function.parameters": f"tools[{index}].{chat_input.schema_field}"
        for index in range(len(schemas))
    }
    if form is not None and not tools.is_forced:
        places["tools"] = places["tool_choice"] = chat_input.form_field
    with rename_faults(places):
        return call_grammar(
            schemas,
            tool_format,
            name=tools.choice,
            is_parallel=chat_input.is_parallel and tools.choice is None,
            control_tokens=context.tokenizer.control_tokens,
            form=None if tools.is_forced else form,
        )


def request_of(
    prepared: PreparedChat,
    params: SamplingParams,
    *,
    context: Context,
    call: HttpCall,
    prefix: str,
    timeout: float | None,
    lora: str,
    continued_token_ids: tuple[int, ...] = (),
) -> Request:
    """The engine's request, if it can ever be computed. Raises: RequestError."""
    request = Request(
        request_id=f"{prefix}{call.request_id}",
        prompt_token_ids=prepared.token_ids,
        params=params,
        cache_salt=call.owner.cache_salt,
        owner=call.owner.name,
        connection=call.connection,
        deadline=context.deadline(timeout),
        lora=lora,
        continued_token_ids=continued_token_ids,
    )
    check_request(request, context.service.model.vocab_size, context.service.model.max_length)
    return request


@contextmanager
def rename_faults(names: Mapping[str, str]) -> Generator[None]:
    """Tell faults by the names that an API has for our fields."""
    try:
        yield
    except RequestError as error:
        whole = error.param or ""
        # A place within a field that is renamed has that field's new name before its own.
        own = max(
            (n for n in names if whole == n or whole.startswith(f"{n}.")), key=len, default=""
        )
        if not own:
            raise
        words = str(error)
        if words.startswith(own) and words[len(own) : len(own) + 1] in (" ", ":", "."):
            error.args = (names[own] + words.removeprefix(own),)
        error.param = names[own] + whole.removeprefix(own)
        raise
