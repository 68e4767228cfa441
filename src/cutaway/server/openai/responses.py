"""OpenAI's Responses: items in, items out, at once or as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.limits import DRAW_SETTINGS, quote
from cutaway.core.output import Usage
from cutaway.core.request import Request
from cutaway.server.answers import ChoiceOutput, news
from cutaway.server.body import read
from cutaway.server.conversation import (
    AnswerFormat,
    ChatInput,
    prepare_chat,
    rename_faults,
    request_of,
)
from cutaway.server.entry.door import HttpCall, call_of
from cutaway.server.field_types import (
    DrawBody,
    Ignored,
    Limited,
    Refused,
    array,
    object_schema,
    optional,
    take_schema,
)
from cutaway.server.looks.opt_in import OptIn, tell_record, wants_trace
from cutaway.server.openai.answer_parts import timings_of, token_logprobs
from cutaway.server.openai.responses_fields import (
    CHOICES,
    CONVERSATION,
    FORMED_TEXT,
    INPUT,
    REASONING,
    REASONING_SCHEMA,
    TOOLS,
)
from cutaway.server.openai.responses_input import form_of, messages_of
from cutaway.server.openai.responses_output import Items
from cutaway.server.openai.responses_state import Earlier, earlier_of, keep
from cutaway.server.openai.responses_tools import Offer, choose_of, offer_of
from cutaway.server.reasoning import effort_extras
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.streaming import EventStream, name_event, until_gone
from cutaway.server.tools import object_of
from cutaway.server.watching import log
from cutaway.text.kinds import is_row

_OBJECT = {"type": "object"}
_LOGPROBS = "message.output_text.logprobs"
# All but the first ask for parts that no answer of this server has.
INCLUDES = (
    *(_LOGPROBS, "reasoning.encrypted_content", "web_search_call.action.sources"),
    *("web_search_call.results", "code_interpreter_call.outputs", "file_search_call.results"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
)
_INCLUDE = array({"enum": list(INCLUDES)})


_NEEDS_STORE = "where the server was started with --store"
_KEPT_ID = {"type": "string", "description": f"of an answer that was kept, {_NEEDS_STORE}"}
_CONVERSATION = {
    "anyOf": [{"type": "string"}, object_schema(CONVERSATION, {"id": {"type": "string"}})],
    "description": f"the id of a conversation that was begun, {_NEEDS_STORE}",
}


class ResponsesBody(DrawBody):
    """The body of a response."""

    model: str
    lora: str | None = None
    input: Annotated[object, take_schema(INPUT)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int | None, Limited("max_tokens")] = None
    seed: Annotated[int | None, Limited("seed")] = None
    ignore_eos: Annotated[bool | None, Limited("ignore_eos")] = None
    timeout: Annotated[float | None, Limited("timeout")] = None
    text: Annotated[object, take_schema(optional(FORMED_TEXT))] = None
    tools: Annotated[object, take_schema(optional(TOOLS))] = None
    tool_choice: Annotated[object, take_schema(optional(CHOICES))] = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Annotated[object, take_schema(optional(_OBJECT))] = None
    metadata: Annotated[object, take_schema(optional(_OBJECT))] = None
    previous_response_id: Annotated[object, take_schema(optional(_KEPT_ID))] = None
    conversation: Annotated[object, take_schema(optional(_CONVERSATION))] = None
    prompt: Annotated[object, Refused("It keeps no prompts: send instructions and input.")] = None
    background: Annotated[object, Refused("Wait for the answer, or stream it.", (False,))] = None
    include: Annotated[object, take_schema(optional(_INCLUDE))] = None
    top_logprobs: Annotated[int | None, Limited("logprobs")] = None
    reasoning: Annotated[object, take_schema(optional(REASONING_SCHEMA))] = None
    # What is too long is refused, whatever this says: nothing is ever left out.
    truncation: Annotated[object, Refused("Leave out what is old.", ("disabled", "auto"))] = None
    max_tool_calls: Ignored = None  # of tools that a provider runs; there are none
    cutaway: OptIn | None = None
    store: bool | None = None  # without a store nothing is kept, and the answer says so
    stream_options: Ignored = None
    user: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    client_metadata: Ignored = None


_DRAWN = (*DRAW_SETTINGS, "seed", "ignore_eos")


@dataclass(frozen=True, kw_only=True)
class ResponsesRequest:
    """A request, ready for the engine."""

    request: Request
    answer_format: AnswerFormat
    grammar_field: str | None  # where the body asks for a form of the answer
    body: ResponsesBody
    is_traced: bool  # whether the end tells where the answer opens
    earlier: Earlier  # what it goes on from
    offer: Offer  # tools, and what the client calls them
    is_kept: bool
    created: int = field(default_factory=lambda: int(time.time()))
    began: float = field(default_factory=perf_counter)


def router(context: Context) -> APIRouter:
    """The route of this API."""
    routes = APIRouter()

    @routes.post("/v1/responses", **describe_route(ResponsesBody, streams=True))
    async def responses(http: HttpRequest) -> Response:
        call = call_of(http.scope)
        asked = await context.worker.take_in(_asked, await http.body(), context, call)
        if not asked.body.stream:
            return json_answer(await until_gone(http.receive, _whole(context, call, asked)))
        stream = _Stream()
        return EventStream(
            stream.events(context, call, asked),
            config=context.config,
            error_event=stream.error,
        )

    return routes


def _asked(data: bytes, context: Context, call: HttpCall) -> ResponsesRequest:
    """Everything that can be wrong with a request is found here, in a worker thread."""
    body = read(data, ResponsesBody)
    lora = context.lora_of(body.model, body.lora)
    if body.metadata is not None:
        object_of(body.metadata, "metadata")
    earlier = earlier_of(
        body.previous_response_id, body.conversation, context.store, call.owner.name
    )
    offer = offer_of(body.tools, _items(body.input, earlier))
    prepared = prepare_chat(_chat_input(body, context, earlier, offer), context)
    drawn = {name: getattr(body, name) for name in _DRAWN}
    drawn |= {"max_tokens": body.max_output_tokens, "logprobs": _logprobs(body)}
    with rename_faults({"max_tokens": "max_output_tokens", "prompt": "input"}):
        params = context.sampling_params({**drawn, **prepared.sampling})
        request = request_of(
            prepared,
            params,
            context=context,
            call=call,
            prefix="resp_",
            timeout=body.timeout,
            lora=lora,
        )
    is_traced = wants_trace(body.cutaway, context)
    return ResponsesRequest(
        request=request,
        answer_format=prepared.answer_format,
        grammar_field=prepared.grammar_field,
        body=body,
        is_traced=is_traced,
        earlier=earlier,
        offer=offer,
        is_kept=context.store is not None and body.store is not False,
    )


def _logprobs(body: ResponsesBody) -> int | None:
    """Alternatives per token; None where no log-probabilities are asked for."""
    if not (body.include is None or is_row(body.include)):
        raise RequestError(f"include is {quote(body.include)}; it must be a list.", param="include")
    asked = body.include or ()
    for index, name in enumerate(asked):
        if name not in INCLUDES:
            raise RequestError(
                f"include[{index}] is {quote(name)}; it must be one of {', '.join(INCLUDES)}.",
                param=f"include[{index}]",
            )
    if _LOGPROBS in asked:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError(
            f'top_logprobs is {body.top_logprobs} without include; send include: ["{_LOGPROBS}"] '
            "as well.",
            param="top_logprobs",
        )
    return None


def _items(given: object, earlier: Earlier) -> list[tuple[object, str]]:
    """All items of the conversation, each with its place."""
    new = given if is_row(given) else ()
    kept = [(item, f"earlier item {index}") for index, item in enumerate(earlier.items)]
    return [*kept, *((item, f"input[{index}]") for index, item in enumerate(new))]


def _chat_input(body: ResponsesBody, context: Context, earlier: Earlier, offer: Offer) -> ChatInput:
    extras = _effort(body.reasoning, context)
    if body.chat_template_kwargs is not None:
        extras |= object_of(body.chat_template_kwargs, "chat_template_kwargs")
    return ChatInput(
        messages=messages_of(body.instructions, body.input, earlier=earlier.items, offer=offer),
        messages_field="input",
        tools=choose_of(offer, body.tool_choice),
        form=form_of(body.text),
        form_field="text.format",
        schema_field="parameters",
        extras=extras,
        is_parallel=body.parallel_tool_calls is not False,
    )


def _effort(value: object, context: Context) -> dict[str, object]:
    if value is None:
        return {}
    fields = object_of(value, "reasoning")
    REASONING.check(fields, "reasoning")
    return effort_extras(fields.get("effort"), context, param="reasoning.effort")


async def _whole(context: Context, call: HttpCall, asked: ResponsesRequest) -> dict[str, Any]:
    """The response of the last event of a stream."""
    last: dict[str, Any] = {}
    async with aclosing(_told(context, call, asked)) as events:
        async for event in events:
            last = event
    return last["response"]


class _Stream:
    """Numbers the events of one stream, an error among them."""

    def __init__(self) -> None:
        self._number = -1

    async def events(
        self, context: Context, call: HttpCall, asked: ResponsesRequest
    ) -> AsyncGenerator[bytes]:
        """All events."""
        async with aclosing(_told(context, call, asked)) as events:
            async for event in events:
                yield self._numbered(event)

    def error(self, body: bytes) -> bytes:
        """An error: its fields as this API has them, and the object that clients look for."""
        error = msgspec.json.decode(body)["error"]
        told = {name: error[name] for name in ("code", "message", "param")}
        return self._numbered({"type": "error", **told, "error": error})

    def _numbered(self, event: dict[str, Any]) -> bytes:
        self._number += 1
        return name_event(event["type"], {**event, "sequence_number": self._number})


async def _told(
    context: Context, call: HttpCall, asked: ResponsesRequest
) -> AsyncGenerator[dict[str, Any]]:
    """The response's start, its items, and its end."""
    write = partial(token_logprobs, tokenizer=context.tokenizer)
    answer, items = (
        ChoiceOutput(),
        Items(asked.answer_format, write=write, find=asked.offer.find),
    )
    has_begun = False
    following = news(
        context,
        call,
        [asked.request],
        grammar_field=asked.grammar_field,
        watch=asked.answer_format.watch(),
    )
    async with aclosing(following) as each:
        async for _, delta in each:
            answer.add(delta)
            if not has_begun:
                has_begun = True
                start = _response(context, asked, status="in_progress")
                yield {"type": "response.created", "response": start}
                yield {"type": "response.in_progress", "response": start}
            for event in items.of(delta):
                yield event
    reasoning = await context.worker.run(context.tokenizer.encode, items.reasoning)
    is_cut = answer.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    whole = {
        **_response(context, asked, status=status),
        # No second look at the wall clock: an answer never ends before it began.
        "completed_at": None if is_cut else asked.created + int(perf_counter() - asked.began),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": items.output,
        "usage": _usage(answer.usage, num_reasoning=len(reasoning)),
        "timings": timings_of([answer]),
        **tell_record(asked.request.request_id, is_wanted=asked.is_traced),
    }
    if asked.is_kept and not await context.worker.run(_is_kept, context, call, asked, whole):
        whole["store"] = False
    yield {"type": f"response.{status}", "response": whole}


def _is_kept(
    context: Context, call: HttpCall, asked: ResponsesRequest, response: dict[str, Any]
) -> bool:
    """Keep an answer; whether it could be. The answer itself is whole either way."""
    assert context.store is not None, "what is kept has a store"
    try:
        keep(context.store, call.owner.name, asked.earlier, asked.body.input, response)
    except OSError as error:
        log.event("not_kept", response=asked.request.request_id, reason=str(error))
        return False
    return True


def _response(context: Context, asked: ResponsesRequest, *, status: str) -> dict[str, Any]:
    """A response that says nothing yet; what was asked for stands in it, as in OpenAI's."""
    body, params = asked.body, asked.request.params
    return {
        "id": asked.request.request_id,
        "object": "response",
        "created_at": asked.created,
        "status": status,
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": context.name_of(asked.request),
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": asked.earlier.previous,
        "conversation": None
        if asked.earlier.conversation is None
        else {"id": asked.earlier.conversation},
        "reasoning": {"effort": None, "summary": None, **(object_of(body.reasoning or {}, ""))},
        "store": asked.is_kept,
        "temperature": params.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _usage(usage: Usage, *, num_reasoning: int) -> dict[str, Any]:
    """Token counts. Reasoning is among the output; apart, its text counts without its markers."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
