"""OpenAI's chat completions: a conversation in, the next message out, at once or as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.output import Delta, TokenLogprob
from cutaway.core.request import Request
from cutaway.server.answers import Answers, gather, news
from cutaway.server.body import read
from cutaway.server.constraints import grammar_of
from cutaway.server.conversation import (
    AnswerFormat,
    ChatInput,
    PreparedChat,
    prepare_chat,
    rename_faults,
    request_of,
    start_answer,
)
from cutaway.server.entry.door import HttpCall, call_of
from cutaway.server.field_types import (
    Ignored,
    Limited,
    Refused,
    array,
    object_schema,
    optional,
    take_schema,
)
from cutaway.server.looks.opt_in import (
    CONTINUED,
    ChatOptIn,
    continued_ids,
    tell_ids,
    tell_record,
    tell_time,
    wants_ids,
    wants_times,
    wants_trace,
)
from cutaway.server.openai.answer_parts import (
    chat_logprobs,
    prompt_logprobs,
    timings_of,
    usage_of,
    usage_so_far,
)
from cutaway.server.openai.calls import GREETING, ChatPieces, chat_choice
from cutaway.server.openai.openai_fields import (
    MostTokens,
    SamplingBody,
    check_streaming,
    counts_on,
    grammar_field,
    includes_usage,
    params_of,
)
from cutaway.server.reasoning import (
    CHAT_REASONING_SCHEMA,
    EFFORT,
    THINKING_SCHEMA,
    chat_extras,
)
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.streaming import DONE, EventStream, TextEvent, data, until_gone
from cutaway.server.tokenizer_routes import token_ids_of
from cutaway.server.tools import TOOL_CHOICES, TOOLS, object_of, tools_of
from cutaway.stream.text import TextStream
from cutaway.text.chat_fields import (
    CALLED_FUNCTION,
    MESSAGE,
    REFUSAL_PART,
    TEXT_PART,
    TOOL_CALL,
)
from cutaway.text.chat_messages import from_dicts
from cutaway.text.kinds import is_row, is_table
from cutaway.tokens.tokenizer import Tokenizer

_PARTS = array({"anyOf": [object_schema(TEXT_PART), object_schema(REFUSAL_PART)]})
_CALLS = array(object_schema(TOOL_CALL, {"function": object_schema(CALLED_FUNCTION)}))
_MESSAGES = array(
    object_schema(
        MESSAGE,
        {
            "role": {"type": "string"},
            "content": {"anyOf": [{"type": ["string", "null"]}, _PARTS]},
            "tool_calls": optional(_CALLS),
        },
        required=["role"],
    ),
    minItems=1,
)
_THINKING = {"anyOf": [THINKING_SCHEMA, {"type": ["boolean", "null"]}]}
_USE_TOOLS = "Send tools and tool_choice."


class ChatBody(SamplingBody):
    """The body of a chat completion."""

    messages: Annotated[object, take_schema(_MESSAGES)]
    max_completion_tokens: Annotated[int | None, MostTokens("max_tokens")] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Limited("logprobs")] = None
    tools: Annotated[object, take_schema(optional(TOOLS))] = None
    tool_choice: Annotated[object, take_schema(optional(TOOL_CHOICES))] = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[object, take_schema(optional({"type": "object"}))] = None
    cutaway: ChatOptIn | None = None
    functions: Annotated[object, Refused(_USE_TOOLS)] = None
    function_call: Annotated[object, Refused(_USE_TOOLS, ("none",))] = None
    audio: Annotated[object, Refused("It writes text alone.")] = None
    modalities: Annotated[object, Refused("It writes text alone.", (["text"],))] = None
    web_search_options: Annotated[object, Refused("It never asks the web.")] = None
    reasoning_effort: Annotated[object, take_schema(EFFORT)] = None
    reasoning: Annotated[object, take_schema(optional(CHAT_REASONING_SCHEMA))] = None
    thinking: Annotated[object, take_schema(_THINKING)] = None
    enable_thinking: Annotated[object, take_schema({"type": ["boolean", "null"]})] = None
    echo: Annotated[object, Refused("Put the words in front yourself.", (False,))] = None
    verbosity: Ignored = None
    prediction: Ignored = None  # the answer is the same without
    store: Ignored = None  # nothing is kept
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    chat_id: Ignored = None  # these are notes of clients for themselves
    session_id: Ignored = None
    client_metadata: Ignored = None


_REASONING = ("reasoning_effort", "reasoning", "thinking", "enable_thinking")


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A chat request, ready for the engine, with what its answer must show."""

    request: Request
    answer_format: AnswerFormat
    grammar_field: str | None  # where the body asks for a form of the answer
    is_streamed: bool
    has_usage: bool
    counts_on: bool  # whether every event tells the counts so far
    is_traced: bool  # whether the end tells where the answer opens
    has_ids: bool  # whether what is said, and its log-probabilities, have token ids
    is_timed: bool  # whether each piece tells when it went out
    tokenize: float  # seconds from the prompt's text to its token ids


def router(context: Context) -> APIRouter:
    """The route of this API."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", **describe_route(ChatBody, streams=True))
    async def chat_completions(http: HttpRequest) -> Response:
        call = call_of(http.scope)
        asked = await context.worker.take_in(_asked, await http.body(), context, call)
        if asked.is_streamed:
            return EventStream(_events(context, call, asked), config=context.config)
        gathering = gather(
            context,
            call,
            [asked.request],
            grammar_field=asked.grammar_field,
            watch=asked.answer_format.watch(),
        )
        answers = await until_gone(http.receive, gathering)
        # Reading a long answer takes a while: 20,000 characters about 0.1 s.
        return json_answer(await context.worker.run(_completion, context, asked, answers))

    return routes


def _asked(body: bytes, context: Context, call: HttpCall) -> ChatRequest:
    """Everything that can be wrong with a request is found here, in a worker thread."""
    read_body = read(body, ChatBody)
    lora = context.lora_of(read_body.model, read_body.lora)
    check_streaming(read_body)
    _check_logprobs(read_body)
    prepared = _prepare(read_body, context)
    params = params_of(
        read_body,
        context,
        max_tokens=_max_tokens(read_body),
        logprobs=(read_body.top_logprobs or 0) if read_body.logprobs else None,
        **prepared.sampling,
    )
    continued = continued_ids(read_body.cutaway, context)
    if continued and not read_body.stream:
        raise RequestError(
            f"{CONTINUED} is given without stream; what was told goes on as a stream. Send stream: "
            "true, or the whole request again.",
            param=CONTINUED,
        )
    with rename_faults({"prompt": "messages", "continued_token_ids": CONTINUED}):
        request = request_of(
            prepared,
            params,
            context=context,
            call=call,
            prefix="chatcmpl-",
            timeout=read_body.timeout,
            lora=lora,
            continued_token_ids=continued,
        )
    return ChatRequest(
        request=request,
        answer_format=prepared.answer_format,
        grammar_field=prepared.grammar_field,
        is_streamed=bool(read_body.stream),
        has_usage=includes_usage(read_body),
        counts_on=counts_on(read_body),
        is_traced=wants_trace(read_body.cutaway, context),
        has_ids=wants_ids(read_body.cutaway),
        is_timed=wants_times(read_body.cutaway, is_streamed=bool(read_body.stream)),
        tokenize=prepared.tokenize,
    )


def _prepare(body: ChatBody, context: Context) -> PreparedChat:
    """The conversation, and the answer's first tokens where they are given."""
    prepared = prepare_chat(_chat_input(body, context), context)
    given_ids = None if body.cutaway is None else body.cutaway.answer_token_ids
    if given_ids is None:
        return prepared
    param = "cutaway.answer_token_ids"
    vocab_size = context.service.model.vocab_size
    return start_answer(
        prepared, token_ids_of(given_ids, param, vocab_size=vocab_size), param=param
    )


def _chat_input(body: ChatBody, context: Context) -> ChatInput:
    extras = chat_extras({name: getattr(body, name) for name in _REASONING}, context)
    if body.chat_template_kwargs is not None:
        extras |= object_of(body.chat_template_kwargs, "chat_template_kwargs")
    return ChatInput(
        messages=from_dicts(body.messages),
        tools=tools_of(body.tools, body.tool_choice),
        form=grammar_of(body.response_format, body.structured_outputs),
        form_field=grammar_field(body) or "response_format",
        extras=extras,
        is_parallel=body.parallel_tool_calls is not False,
        is_open=_is_open(body),
        has_opening=body.add_generation_prompt is not False,
    )


def _is_open(body: ChatBody) -> bool:
    """Whether the model goes on with the last message: vLLM's field asks for it, or Mistral's."""
    is_asked = bool(body.continue_final_message)
    if is_asked and body.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt are both true; a message that is "
            "continued has no new opening. Send one of them.",
            param="continue_final_message",
        )
    last = body.messages[-1] if is_row(body.messages) and body.messages else None
    return is_asked or (is_table(last) and last.get("prefix") is True)


def _max_tokens(body: ChatBody) -> int | None:
    """The newer name and the older one mean the same."""
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and older is not None and newer != older:
        raise RequestError(
            f"max_completion_tokens is {newer} and max_tokens is {older}; send one of them.",
            param="max_completion_tokens",
        )
    return older if newer is None else newer


def _check_logprobs(body: ChatBody) -> None:
    if body.top_logprobs and not body.logprobs:
        raise RequestError(
            f"top_logprobs is {body.top_logprobs} without logprobs; send logprobs: true as well.",
            param="top_logprobs",
        )
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError(
            f"prompt_logprobs is {body.prompt_logprobs} in a stream; leave out stream.",
            param="prompt_logprobs",
        )


def _completion(context: Context, asked: ChatRequest, answers: Answers) -> dict[str, Any]:
    (choices,) = answers.all
    wants_logprobs = asked.request.params.logprobs is not None
    whole: dict[str, Any] = {
        "id": asked.request.request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": context.name_of(asked.request),
        "choices": [
            {
                "index": index,
                **chat_choice(answer, asked.answer_format),
                "logprobs": _logprobs(context, asked, answer.logprobs) if wants_logprobs else None,
                **tell_ids(answer.token_ids, is_wanted=asked.has_ids),
            }
            for index, answer in enumerate(choices)
        ],
        "usage": usage_of(answers.all),
        "timings": timings_of(choices, tokenize=asked.tokenize),
        **tell_record(asked.request.request_id, is_wanted=asked.is_traced),
    }
    if asked.request.params.prompt_logprobs is not None:
        scores = choices[0].prompt_logprobs
        whole["prompt_logprobs"] = prompt_logprobs(scores, context.tokenizer)
    return whole


async def _events(context: Context, call: HttpCall, asked: ChatRequest) -> AsyncGenerator[bytes]:
    """Role, text, end and, if asked for, token counts: each event as OpenAI orders them."""
    frame: dict[str, Any] = {
        "id": asked.request.request_id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": context.name_of(asked.request),
    }
    if asked.has_usage:
        frame["usage"] = None
    answers = Answers([asked.request])
    (choices,) = answers.all
    has_scores = asked.request.params.logprobs is not None
    is_text = not (has_scores or asked.counts_on or asked.has_ids or asked.is_timed)
    pieces: dict[int, ChatPieces] = {}
    texts: dict[int, TextEvent] = {}
    following = news(
        context,
        call,
        [asked.request],
        grammar_field=asked.grammar_field,
        watch=asked.answer_format.watch(),
    )
    async with aclosing(following) as each:
        async for prompt, delta in each:
            answers.add(prompt, delta)
            if asked.counts_on:
                frame["usage"] = usage_so_far([asked.request.prompt_token_ids], answers)
            if delta.choice not in pieces:
                pieces[delta.choice] = ChatPieces(asked.answer_format)
                pieces[delta.choice].skip(_told_text(asked.request, context.tokenizer))
                yield data({**frame, "choices": [_piece(delta, GREETING)]})
            for choice in _choices(context, asked, delta, pieces[delta.choice]):
                if is_text and choice["delta"].keys() == {"content"}:
                    if delta.choice not in texts:
                        texts[delta.choice] = _text_event(frame, delta)
                    yield texts[delta.choice].of(choice["delta"]["content"])
                    continue
                yield data({**frame, "choices": [choice], **tell_time(is_wanted=asked.is_timed)})
            if delta.finish_reason is not None:
                timings = timings_of([choices[delta.choice]], tokenize=asked.tokenize)
                ending = {**_piece(delta, {}), **pieces[delta.choice].ending(delta)}
                more = tell_record(asked.request.request_id, is_wanted=asked.is_traced)
                yield data({**frame, "choices": [ending], "timings": timings, **more})
    if asked.has_usage:
        usage = usage_of(answers.all)
        timings = timings_of(choices, tokenize=asked.tokenize)
        yield data({**frame, "choices": [], "usage": usage, "timings": timings})
    yield DONE


def _logprobs(
    context: Context, asked: ChatRequest, logprobs: Sequence[TokenLogprob]
) -> dict[str, Any]:
    return chat_logprobs(logprobs, context.tokenizer, has_ids=asked.has_ids)


def _choices(
    context: Context, asked: ChatRequest, delta: Delta, pieces: ChatPieces
) -> Iterator[dict[str, Any]]:
    """What a delta says; its log-probabilities stand with the first piece."""
    said = pieces.of(delta)
    if delta.logprobs or (asked.has_ids and delta.token_ids):
        first = _piece(delta, said[0] if said else {"content": ""})
        if delta.logprobs:
            first["logprobs"] = _logprobs(context, asked, delta.logprobs)
        yield {**first, **tell_ids(delta.token_ids, is_wanted=asked.has_ids)}
        said = said[1:]
    for each in said:
        yield _piece(delta, each)


def _text_event(frame: Mapping[str, Any], delta: Delta) -> TextEvent:
    """What of one choice's pieces of content stays, where nothing stands beside them."""
    return TextEvent(lambda text: {**frame, "choices": [_piece(delta, {"content": text})]})


def _told_text(request: Request, tokenizer: Tokenizer) -> str:
    """What another server has told of an answer, as it did: without what it held back."""
    skipped = tokenizer.control_ids if request.params.skip_special_tokens else frozenset[int]()
    stream = TextStream(request.params, tokenizer.token_bytes, skipped=skipped)
    return "".join(stream.advance(token_id) for token_id in request.continued_token_ids)


def _piece(delta: Delta, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": delta.choice, "delta": said, "logprobs": None, "finish_reason": None}
