"""Anthropic's messages: a conversation in, blocks of content out, at once or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core import limits
from cutaway.core.errors import RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.limits import DRAW_SETTINGS, quote
from cutaway.core.output import Delta, Usage
from cutaway.core.request import Request
from cutaway.server.answers import ChoiceOutput, news
from cutaway.server.anthropic.messages_fields import (
    CHOICES,
    CONFIG,
    MESSAGES,
    OUTPUT_CONFIG,
    OUTPUT_FORMAT,
    SYSTEM,
    TOOLS,
)
from cutaway.server.anthropic.messages_input import messages_of, tools_of
from cutaway.server.anthropic.messages_output import Blocks, content_of, usage_of
from cutaway.server.body import read
from cutaway.server.constraints import schema_grammar
from cutaway.server.conversation import (
    AnswerFormat,
    ChatInput,
    PreparedChat,
    prepare_chat,
    rename_faults,
    request_of,
)
from cutaway.server.entry.door import HttpCall, call_of
from cutaway.server.field_types import (
    Body,
    DrawBody,
    Ignored,
    Limited,
    Refused,
    array,
    optional,
    take_schema,
)
from cutaway.server.looks.opt_in import OptIn, tell_record, wants_trace
from cutaway.server.openai.answer_parts import timings_of
from cutaway.server.reasoning import THINKING_SCHEMA, effort_extras, switch_extras
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.streaming import EventStream, name_event, until_gone
from cutaway.server.tools import object_of
from cutaway.text.chat_messages import Message
from cutaway.text.kinds import is_row

# The newer one only takes fields away, temperature among them; here they stay, as extras.
VERSIONS = ("2023-06-01", "2026-10-21")

_OBJECT = {"type": "object"}
_STOPS = array({"type": "string", "minLength": 1}, maxItems=limits.MAX_STOP_STRINGS)
_ERROR = {
    **_OBJECT,
    "properties": {
        "type": {"const": "error"},
        "error": {
            **_OBJECT,
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
    },
    "required": ["type", "error"],
}


class CountBody(Body):
    """A conversation whose tokens are counted."""

    model: str
    messages: Annotated[object, take_schema(MESSAGES)]
    system: Annotated[object, take_schema(SYSTEM)] = None
    tools: Annotated[object, take_schema(optional(TOOLS))] = None
    tool_choice: Annotated[object, take_schema(optional(CHOICES))] = None
    thinking: Annotated[object, take_schema(optional(THINKING_SCHEMA))] = None
    output_config: Annotated[object, take_schema(optional(CONFIG))] = None
    chat_template_kwargs: Annotated[object, take_schema(optional(_OBJECT))] = None
    cache_control: Ignored = None  # every prompt is kept in the cache as it is


class MessagesBody(CountBody, DrawBody):
    """A conversation that is answered."""

    max_tokens: Annotated[int | None, Limited("max_tokens")]
    lora: str | None = None
    stream: bool | None = None
    stop_sequences: Annotated[object, take_schema(optional(_STOPS))] = None
    seed: Annotated[int | None, Limited("seed")] = None
    ignore_eos: Annotated[bool | None, Limited("ignore_eos")] = None
    timeout: Annotated[float | None, Limited("timeout")] = None
    cutaway: OptIn | None = None
    container: Annotated[object, Refused("It runs no code.")] = None
    mcp_servers: Annotated[object, Refused("It asks no other servers.", ([],))] = None
    context_management: Ignored = None  # old thoughts are left out by the template, or by nobody
    metadata: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    speed: Ignored = None
    user_profile_id: Ignored = None
    workspace_id: Ignored = None
    diagnostics: Ignored = None


_DRAWN = (*DRAW_SETTINGS, "max_tokens", "seed", "ignore_eos")


@dataclass(frozen=True, kw_only=True)
class MessagesRequest:
    """A request, ready for the engine."""

    request: Request
    answer_format: AnswerFormat
    grammar_field: str | None  # where the body asks for a form of the answer
    is_streamed: bool
    is_traced: bool  # whether the end tells where the answer opens


def router(context: Context) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter()

    @routes.post("/v1/messages", **describe_route(MessagesBody, streams=True, error=_ERROR))
    async def messages(http: HttpRequest) -> Response:
        _check_version(http)
        call = call_of(http.scope)
        asked = await context.worker.take_in(_asked, await http.body(), context, call)
        if asked.is_streamed:
            return EventStream(
                _events(context, call, asked),
                config=context.config,
                error_event=lambda body: b"event: error\ndata: " + body + b"\n\n",
            )
        return json_answer(await until_gone(http.receive, _whole(context, call, asked)))

    @routes.post("/v1/messages/count_tokens", **describe_route(CountBody, error=_ERROR))
    async def count_tokens(http: HttpRequest) -> Response:
        _check_version(http)
        return json_answer(await context.worker.take_in(_counted, await http.body(), context))

    return routes


def _check_version(http: HttpRequest) -> None:
    version = http.headers.get("anthropic-version")
    if version not in (None, *VERSIONS):
        raise RequestError(
            f"anthropic-version is {quote(version)}; it must be {' or '.join(VERSIONS)}.",
            param="anthropic-version",
        )


def _counted(data: bytes, context: Context) -> dict[str, int]:
    body = read(data, CountBody)
    context.check_model(body.model)
    return {"input_tokens": len(prepare_chat(_chat_input(body, context), context).token_ids)}


def _asked(data: bytes, context: Context, call: HttpCall) -> MessagesRequest:
    """Everything that can be wrong with a request is found here, in a worker thread."""
    body = read(data, MessagesBody)
    lora = context.lora_of(body.model, body.lora)
    if body.max_tokens is None:
        raise RequestError("max_tokens is missing; the request needs it.", param="max_tokens")
    stops = body.stop_sequences
    if not (stops is None or is_row(stops)):
        raise RequestError(
            f"stop_sequences is {quote(stops)}; it must be a list.", param="stop_sequences"
        )
    prepared = prepare_chat(_chat_input(body, context), context)
    drawn = {name: getattr(body, name) for name in _DRAWN}
    with rename_faults({"stop": "stop_sequences", "prompt": "messages"}):
        drawn["max_tokens"] = _bounded(body.max_tokens, prepared, context)
        params = context.sampling_params({**drawn, "stop": stops, **prepared.sampling})
        request = request_of(
            prepared,
            params,
            context=context,
            call=call,
            prefix="msg_",
            timeout=body.timeout,
            lora=lora,
        )
    return MessagesRequest(
        request=request,
        answer_format=prepared.answer_format,
        grammar_field=prepared.grammar_field,
        is_streamed=bool(body.stream),
        is_traced=wants_trace(body.cutaway, context),
    )


def _bounded(max_tokens: int, prepared: PreparedChat, context: Context) -> int:
    """max_tokens, or what there is room for: here the field is needed, and clients send one large
    number to every model. The answer is the same, since none grows beyond its context.
    """
    room = context.service.model.max_length - len(prepared.token_ids)
    return min(max_tokens, room) if room > 0 else max_tokens


def _chat_input(body: CountBody, context: Context) -> ChatInput:
    tools, is_parallel = tools_of(body.tools, body.tool_choice)
    extras = _effort(body.output_config, context)
    extras |= switch_extras(body.thinking, context, param="thinking")
    if body.chat_template_kwargs is not None:
        extras |= object_of(body.chat_template_kwargs, "chat_template_kwargs")
    messages = messages_of(body.system, body.messages)
    return ChatInput(
        messages=messages,
        tools=tools,
        form=_form(body.output_config),
        form_field="output_config.format",
        schema_field="input_schema",
        extras=extras,
        is_parallel=is_parallel,
        is_open=_is_begun(messages[-1]),
    )


def _is_begun(last: Message) -> bool:
    """Whether the answer's first words are given: the conversation ends with the assistant's."""
    return last.role == "assistant" and bool(last.text) and len(last.texts) == len(last.content)


def _effort(value: object, context: Context) -> dict[str, object]:
    if value is None:
        return {}
    effort = object_of(value, "output_config").get("effort")
    return effort_extras(effort, context, param="output_config.effort")


def _form(value: object) -> Grammar | None:
    """The form of the answer, where one is asked for."""
    if value is None:
        return None
    asked = object_of(value, "output_config")
    OUTPUT_CONFIG.check(asked, "output_config")
    wanted = asked.get("format")
    if wanted is None:
        return None
    fields = object_of(wanted, "output_config.format")
    OUTPUT_FORMAT.check(fields, "output_config.format")
    if fields.get("type") != "json_schema":
        raise RequestError(
            f"output_config.format.type is {quote(fields.get('type'))}; it must be json_schema.",
            param="output_config.format.type",
        )
    return schema_grammar(fields.get("schema"), "output_config.format.schema")


def _news(
    context: Context, call: HttpCall, asked: MessagesRequest
) -> AsyncGenerator[tuple[int, Delta]]:
    watch, grammar_field = asked.answer_format.watch(), asked.grammar_field
    return news(context, call, [asked.request], grammar_field=grammar_field, watch=watch)


async def _whole(context: Context, call: HttpCall, asked: MessagesRequest) -> dict[str, Any]:
    answer, blocks = ChoiceOutput(), Blocks(asked.answer_format)
    events: list[dict[str, Any]] = []
    ending: dict[str, Any] = {}
    following = _news(context, call, asked)
    async with aclosing(following) as each:
        async for _, delta in each:
            answer.add(delta)
            events += blocks.of(delta)
            if delta.finish_reason is not None:
                ending = blocks.ending(delta)
    return {
        **_message(context, asked),
        "content": content_of(events),
        **ending,
        "usage": usage_of(answer.usage),
        "timings": timings_of([answer]),
        **tell_record(asked.request.request_id, is_wanted=asked.is_traced),
    }


async def _events(
    context: Context, call: HttpCall, asked: MessagesRequest
) -> AsyncGenerator[bytes]:
    """The message's start, its blocks, one ping as Anthropic sends it, and its end."""
    answer, blocks = ChoiceOutput(), Blocks(asked.answer_format)
    has_begun = has_pinged = False
    following = _news(context, call, asked)
    async with aclosing(following) as each:
        async for _, delta in each:
            answer.add(delta)
            if not has_begun:
                has_begun = True
                yield _event({"type": "message_start", "message": _message(context, asked)})
            for event in blocks.of(delta):
                yield _event(event)
                if not has_pinged:
                    has_pinged = True
                    yield _event({"type": "ping"})
            if delta.finish_reason is not None:
                end = {"type": "message_delta", "delta": blocks.ending(delta)}
                counts = {"usage": usage_of(answer.usage), "timings": timings_of([answer])}
                more = tell_record(asked.request.request_id, is_wanted=asked.is_traced)
                yield _event({**end, **counts, **more})
    yield _event({"type": "message_stop"})


def _event(event: dict[str, Any]) -> bytes:
    return name_event(event["type"], event)


def _message(context: Context, asked: MessagesRequest) -> dict[str, Any]:
    """A message of which nothing is said yet."""
    return {
        "id": asked.request.request_id,
        "type": "message",
        "role": "assistant",
        "model": context.name_of(asked.request),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(Usage(len(asked.request.prompt_token_ids), 0, 0)),
    }
