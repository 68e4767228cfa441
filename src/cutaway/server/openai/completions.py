"""OpenAI's completions: prompts as text or token ids in, their continuations out.

What lm-eval asks for to score texts is here: echo with log-probabilities of the prompt.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.output import Delta, TokenLogprob
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission.request_checks import check_request
from cutaway.server.answers import Answers, ChoiceOutput, gather, news
from cutaway.server.body import read
from cutaway.server.conversation import rename_faults
from cutaway.server.entry.door import HttpCall, call_of
from cutaway.server.field_types import Limited, Refused, array, kinds_in, take_schema
from cutaway.server.looks.opt_in import (
    CONTINUED,
    TokenOptIn,
    continued_ids,
    tell_ids,
    tell_record,
    wants_ids,
    wants_trace,
)
from cutaway.server.openai.answer_parts import (
    Offsets,
    ending_of,
    prompt_logprobs,
    text_logprobs,
    timings_of,
    usage_of,
    usage_so_far,
)
from cutaway.server.openai.openai_fields import (
    SamplingBody,
    check_streaming,
    counts_on,
    grammar_field,
    includes_usage,
    params_of,
)
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.server_config import MAX_PROMPTS
from cutaway.server.streaming import DONE, EventStream, TextEvent, data, until_gone
from cutaway.server.tokenizer_routes import token_ids_of

DEFAULT_MAX_TOKENS = 16  # OpenAI's
# Of a body that is read in the event loop: 2,000 ids, which take 0.3 ms.
MOST_QUICK_BYTES = 16 * 1024

_IDS = array({"type": "integer", "minimum": 0}, minItems=1)
_PROMPT = {
    "anyOf": [
        {"type": "string"},
        array({"type": "string"}, minItems=1, maxItems=MAX_PROMPTS),
        _IDS,
        array(_IDS, minItems=1, maxItems=MAX_PROMPTS),
    ],
    "description": f"a text, token ids, or at most {MAX_PROMPTS} of either",
}


class CompletionBody(SamplingBody):
    """The body of a completion.

    add_special_tokens: whether a text gets the BOS that the model wants in front.
    control: whether names of control tokens in a text become those tokens.
    """

    prompt: Annotated[object, take_schema(_PROMPT)]
    echo: bool | None = None
    logprobs: Annotated[int | None, Limited("logprobs")] = None
    add_special_tokens: bool | None = None
    control: bool | None = None
    cutaway: TokenOptIn | None = None
    suffix: Annotated[object, Refused("It continues texts and fills no gaps.", ("",))] = None


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A completions request, ready for the engine, with what its answer must show.

    texts: for each prompt what echo puts in front; empty without echo.
    """

    requests: Sequence[Request]
    grammar_field: str | None  # where the body asks for a form of the answer
    texts: Sequence[str]
    has_echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    is_streamed: bool
    has_usage: bool
    counts_on: bool  # whether every event tells the counts so far
    is_traced: bool  # whether the end tells where the answer opens
    has_ids: bool  # whether what is said has its tokens' ids

    @property
    def completion_id(self) -> str:
        """The id of the whole answer."""
        return self.requests[0].request_id.rpartition("-")[0]

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self.requests[0].params.n


def router(context: Context) -> APIRouter:
    """The route of this API."""
    routes = APIRouter()

    @routes.post("/v1/completions", **describe_route(CompletionBody, streams=True))
    async def completions(http: HttpRequest) -> Response:
        call = call_of(http.scope)
        body = await http.body()
        if _is_quick(body):
            asked = _asked(body, context, call)
        else:
            asked = await context.worker.take_in(_asked, body, context, call)
        if asked.is_streamed:
            return EventStream(_events(context, call, asked), config=context.config)
        gathering = gather(context, call, asked.requests, grammar_field=asked.grammar_field)
        answers = await until_gone(http.receive, gathering)
        # Scores of many long prompts take a while to write.
        return json_answer(await context.worker.run(_completion, context, asked, answers))

    return routes


class _Ids(msgspec.Struct):
    """A body that is read in no time: ids, of which none is looked at alone, and nothing long."""

    prompt: list[int]
    echo: Literal[False] | None = None
    logit_bias: None = None
    response_format: None = None
    structured_outputs: None = None
    cutaway: None = None


_READ_IDS = msgspec.json.Decoder(_Ids)


def _is_quick(body: bytes) -> bool:
    """Whether a body is read at once: to hand it to a thread would take longer than to read it."""
    if len(body) > MOST_QUICK_BYTES:
        return False
    try:
        _READ_IDS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _asked(body: bytes, context: Context, call: HttpCall) -> CompletionRequest:
    """Everything that can be wrong with a request is found here, in a worker thread or at once."""
    read_body = read(body, CompletionBody)
    lora = context.lora_of(read_body.model, read_body.lora)
    call.operation = "text_completion"
    check_streaming(read_body)
    _check_scores(read_body)
    prompts = _prompts(read_body, context)
    longest = max(len(token_ids) for _, token_ids in prompts)
    params = _params(read_body, context, longest=longest)
    continued = continued_ids(read_body.cutaway, context)
    if continued and len(prompts) > 1:
        raise RequestError(
            f"{CONTINUED} is given with {len(prompts)} prompts; one answer is continued. Send a "
            "request for each.",
            param=CONTINUED,
        )
    deadline = context.deadline(read_body.timeout)
    has_echo = bool(read_body.echo)
    asked = CompletionRequest(
        requests=[
            Request(
                request_id=f"cmpl-{call.request_id}-{index}",
                prompt_token_ids=tuple(token_ids),
                params=params,
                cache_salt=call.owner.cache_salt,
                owner=call.owner.name,
                connection=call.connection,
                deadline=deadline,
                lora=lora,
                continued_token_ids=continued,
            )
            for index, (_, token_ids) in enumerate(prompts)
        ],
        grammar_field=grammar_field(read_body),
        texts=[text if has_echo else "" for text, _ in prompts],
        has_echo=has_echo,
        logprobs=read_body.logprobs,
        prompt_logprobs=read_body.prompt_logprobs,
        is_streamed=bool(read_body.stream),
        has_usage=includes_usage(read_body),
        counts_on=counts_on(read_body),
        is_traced=wants_trace(read_body.cutaway, context),
        has_ids=wants_ids(read_body.cutaway),
    )
    with rename_faults({"continued_token_ids": CONTINUED}):
        for request in asked.requests:
            model = context.service.model
            check_request(request, model.vocab_size, model.max_length)
    return asked


def _check_scores(body: CompletionBody) -> None:
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError(
            f"prompt_logprobs is {body.prompt_logprobs} in a stream; leave out stream, or send "
            "echo and logprobs.",
            param="prompt_logprobs",
        )


def _params(body: CompletionBody, context: Context, *, longest: int) -> SamplingParams:
    """With echo, the prompt is scored as the answer is; with no answer it is scored alone.

    longest: tokens of the longest prompt; where nothing is asked for, the answer has what is left.
    """
    left = max(1, context.service.model.max_length - longest)
    default = min(DEFAULT_MAX_TOKENS, left)
    max_tokens = default if body.max_tokens is None else body.max_tokens
    if body.max_tokens is None and body.min_tokens is not None:
        max_tokens = max(max_tokens, body.min_tokens)
    scores = body.prompt_logprobs
    if body.echo and (body.logprobs is not None or max_tokens == 0):
        scores = max(scores or 0, body.logprobs or 0)
    return params_of(
        body, context, max_tokens=max_tokens, logprobs=body.logprobs, prompt_logprobs=scores
    )


def _prompts(body: CompletionBody, context: Context) -> list[tuple[str, list[int]]]:
    """Text and token ids of each prompt."""
    if isinstance(body.prompt, str):
        return [_of_text(body.prompt, body, context)]
    if not isinstance(body.prompt, list) or not body.prompt:
        raise _no_prompt(body)
    items = cast("list[object]", body.prompt)
    kinds = kinds_in(items)
    if kinds <= {int, bool}:
        return [_of_ids(items, body, context)]
    if len(items) > MAX_PROMPTS:
        raise RequestError(
            f"prompt has {len(items)} prompts; at most {MAX_PROMPTS} are allowed. Send several "
            "requests.",
            param="prompt",
        )
    if kinds == {str}:
        return [_of_text(cast(str, item), body, context) for item in items]
    if kinds == {list}:
        return [_of_ids(item, body, context) for item in items]
    raise _no_prompt(body)


def _of_text(text: str, body: CompletionBody, context: Context) -> tuple[str, list[int]]:
    bos = body.add_special_tokens is not False
    return text, context.tokenizer.encode(text, control=bool(body.control), bos=bos)


def _of_ids(ids: object, body: CompletionBody, context: Context) -> tuple[str, list[int]]:
    token_ids = token_ids_of(ids, "prompt", vocab_size=context.service.model.vocab_size)
    skip = body.skip_special_tokens is not False
    text = context.tokenizer.decode(token_ids, skip_control=skip) if body.echo else ""
    return text, token_ids


def _no_prompt(body: CompletionBody) -> RequestError:
    return RequestError(
        f"prompt is {quote(body.prompt)}; it must be a string, a list of strings, a list "
        "of token ids, or a list of such lists, and not empty.",
        param="prompt",
    )


def _completion(context: Context, asked: CompletionRequest, answers: Answers) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for prompt, each in enumerate(answers.all):
        for choice, answer in enumerate(each):
            choices.append(
                {
                    "index": prompt * asked.n + choice,
                    "text": asked.texts[prompt] + answer.text,
                    "logprobs": _logprobs(
                        context,
                        asked,
                        _scored(asked, prompt, answer, each[0].prompt_logprobs),
                        Offsets(),
                    ),
                    **ending_of(answer),
                    **tell_ids(answer.token_ids, is_wanted=asked.has_ids),
                    **_scores(context, asked, each[0]),
                }
            )
    return {
        "id": asked.completion_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": context.name_of(asked.requests[0]),
        "choices": choices,
        "usage": usage_of(answers.all),
        "timings": timings_of(answers.all[0]),
        **tell_record(asked.completion_id, is_wanted=asked.is_traced),
    }


def _logprobs(
    context: Context,
    asked: CompletionRequest,
    scored: Sequence[tuple[int, TokenLogprob | None]],
    offsets: Offsets,
) -> dict[str, Any] | None:
    if asked.logprobs is None:
        return None
    return text_logprobs(scored, tokenizer=context.tokenizer, offsets=offsets, asked=asked.logprobs)


def _scored(
    asked: CompletionRequest,
    prompt: int,
    answer: ChoiceOutput,
    scores: Sequence[TokenLogprob | None],
) -> list[tuple[int, TokenLogprob | None]]:
    """Tokens with their scores: those of the answer, after the prompt's where it is echoed."""
    own = zip(answer.token_ids, answer.logprobs, strict=False)
    if not asked.has_echo:
        return list(own)
    return [*zip(asked.requests[prompt].prompt_token_ids, scores, strict=False), *own]


def _scores(context: Context, asked: CompletionRequest, first: ChoiceOutput) -> dict[str, Any]:
    if asked.prompt_logprobs is None:
        return {}
    return {"prompt_logprobs": prompt_logprobs(first.prompt_logprobs, context.tokenizer)}


async def _events(
    context: Context, call: HttpCall, asked: CompletionRequest
) -> AsyncGenerator[bytes]:
    """Text, end and, if asked for, token counts: each event as OpenAI orders them."""
    frame: dict[str, Any] = {
        "id": asked.completion_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": context.name_of(asked.requests[0]),
    }
    if asked.has_usage:
        frame["usage"] = None
    answers = Answers(asked.requests)
    begun: dict[tuple[int, int], Offsets] = {}
    texts: dict[tuple[int, int], TextEvent] = {}
    is_text = asked.logprobs is None and not (asked.counts_on or asked.has_ids)  # but for its end
    following = news(context, call, asked.requests, grammar_field=asked.grammar_field)
    async with aclosing(following) as each:
        async for prompt, delta in each:
            if asked.counts_on or delta.finish_reason is not None:
                answers.add(prompt, delta)  # of the others nothing is asked again
            if asked.counts_on:
                frame["usage"] = usage_so_far(
                    [request.prompt_token_ids for request in asked.requests], answers
                )
            place = (prompt, delta.choice)
            is_first = place not in begun
            if is_text and not is_first and delta.finish_reason is None:
                if place not in texts:
                    texts[place] = _text_event(context, asked, frame, place)
                if delta.text:
                    yield texts[place].of(delta.text)
                continue
            offsets = begun.setdefault(place, Offsets())
            piece = _piece(context, asked, prompt, delta, offsets, is_first=is_first)
            piece |= tell_ids(delta.token_ids, is_wanted=asked.has_ids)
            has_news = piece["text"] or piece["logprobs"] or piece.get("token_ids")
            if not (has_news or delta.finish_reason):
                continue
            event = {**frame, "choices": [piece]}
            if delta.finish_reason is not None:
                event["timings"] = timings_of([answers.all[prompt][delta.choice]])
                event |= tell_record(asked.completion_id, is_wanted=asked.is_traced)
            yield data(event)
    if asked.has_usage:
        usage, timings = usage_of(answers.all), timings_of(answers.all[0])
        yield data({**frame, "choices": [], "usage": usage, "timings": timings})
    yield DONE


def _text_event(
    context: Context, asked: CompletionRequest, frame: dict[str, Any], place: tuple[int, int]
) -> TextEvent:
    """What of one choice's pieces stays, where they are text alone."""
    prompt, choice = place

    def value(text: str) -> dict[str, Any]:
        delta = Delta(asked.requests[prompt].request_id, choice, text=text)
        piece = _piece(context, asked, prompt, delta, Offsets(), is_first=False)
        return {**frame, "choices": [piece]}

    return TextEvent(value)


def _piece(
    context: Context,
    asked: CompletionRequest,
    prompt: int,
    delta: Delta,
    offsets: Offsets,
    *,
    is_first: bool,
) -> dict[str, Any]:
    """What is new of one choice; the first piece holds the echo."""
    echo = asked.texts[prompt] if is_first else ""
    own: list[tuple[int, TokenLogprob | None]] = [
        *zip(delta.token_ids, delta.logprobs, strict=False)
    ]
    if is_first and asked.has_echo:
        ids = asked.requests[prompt].prompt_token_ids
        own = [*zip(ids, delta.prompt_logprobs, strict=False), *own]
    return {
        "index": prompt * asked.n + delta.choice,
        "text": echo + delta.text,
        "logprobs": _logprobs(context, asked, own, offsets) if own else None,
        **ending_of(delta),
    }
