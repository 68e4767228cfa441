"""News of running requests for a route: merged, measured, and ended when nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import cast

import msgspec

from cutaway.core.errors import (
    DeadlineError,
    EngineClosedError,
    GrammarError,
    OverloadedError,
)
from cutaway.core.output import Delta, FinishReason, Timings, TokenLogprob, Usage
from cutaway.core.request import Request
from cutaway.fleet.fleet import Fleet
from cutaway.server.entry.door import HttpCall
from cutaway.server.route_context import Context

# Tells of a delta whether its choice is complete, whatever else the model would say.
Watch = Callable[[Delta], bool]

MAX_UNREAD = 64  # news of several prompts that are with nobody yet
MAX_AT_ONCE = 16  # prompts of one HTTP request that are with the engine; the others wait here


@dataclass
class ChoiceOutput:
    """Everything that was said about one choice."""

    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list[TokenLogprob | None])
    finish_reason: FinishReason = "abort"
    stopped_by: str | int | None = None
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))
    timings: Timings = field(default_factory=lambda: Timings(0, 0, 0, 0, 0))
    seam: bool | None = None  # whether it went on in another engine, and to the bit

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    def add(self, delta: Delta) -> None:
        """Take in what is new."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stopped_by = delta.stopped_by
            self.usage = delta.usage or self.usage
            self.timings = delta.timings or self.timings
            self.seam = delta.seam


class Answers:
    """The answers to all prompts of one HTTP request: [prompt][choice]."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.all = [[ChoiceOutput() for _ in range(request.params.n)] for request in requests]

    def add(self, prompt: int, delta: Delta) -> None:
        """Take in what is new."""
        self.all[prompt][delta.choice].add(delta)


async def gather(
    context: Context,
    call: HttpCall,
    requests: Sequence[Request],
    *,
    grammar_field: str | None,
    watch: Watch | None = None,
) -> Answers:
    """All answers, when they are complete, else an error; arguments and errors as news has them."""
    answers = Answers(requests)
    following = news(context, call, requests, grammar_field=grammar_field, watch=watch)
    async with aclosing(following) as each:
        async for prompt, delta in each:
            answers.add(prompt, delta)
    return answers


def news(
    context: Context,
    call: HttpCall,
    requests: Sequence[Request],
    *,
    grammar_field: str | None,
    watch: Watch | None = None,
) -> AsyncGenerator[tuple[int, Delta]]:
    """What is new, with the number of its prompt. Leaving the loop ends all requests.

    grammar_field: where the body asks for a form of the answer; errors of the form name it.
    watch: tells of each delta whether its choice is complete; then the engine ends it.
    Raises: what the engine refuses; the error of the first answer that failed.
    """
    followed = [
        _measured(context, call, prompt, request, grammar_field, watch)
        for prompt, request in enumerate(requests)
    ]
    return followed[0] if len(followed) == 1 else _merged(followed)


async def _measured(
    context: Context,
    call: HttpCall,
    prompt: int,
    request: Request,
    grammar_field: str | None,
    watch: Watch | None,
) -> AsyncGenerator[tuple[int, Delta]]:
    """News of one request, which is a prompt's of some number."""
    # Each generator that a token passes costs it half a microsecond, so there are few.
    metrics = context.metrics
    metrics.count_started(request.params)
    heard: dict[int, float] = {}
    num_left = request.params.n
    why = "client"  # what ends a loop from outside is that nobody listens
    endings: list[tuple[float, Delta]] = []  # with when each was heard, by perf_counter
    try:
        in_time = _in_time(call, request)
        call.arrive()  # the engine's own bound counts it in the next line
        followed = _as_generator(context.service.follow(in_time))
        if watch is not None:
            followed = _watched(context, in_time, followed, watch)
        async with aclosing(followed) as deltas:
            async for delta in deltas:
                if not heard and isinstance(context.service, Fleet):
                    call.tell_replica(context.service.replica_of(request.request_id))
                _measure(context, delta, heard)
                if delta.finish_reason is not None:
                    endings.append((perf_counter(), delta))
                    _count(call, delta)
                    _raise_fault(delta, request, grammar_field)
                    num_left -= 1
                yield prompt, delta
    except OverloadedError:
        why = "overloaded"
        raise
    except Exception as error:
        why = getattr(error, "code", "engine")
        raise
    finally:
        if num_left and why == "overloaded":
            metrics.count_rejected(why)
        elif num_left:
            metrics.count_aborted(why)
        if context.spans is not None:
            context.spans.tell(call, request, endings, fault=why if num_left else None)


def _in_time(call: HttpCall, request: Request) -> Request:
    """The request with what is left of its time, which runs from when it came here.

    Raises: DeadlineError when nothing is left.
    """
    if request.deadline is None:
        return request
    left = request.deadline - (perf_counter() - call.began)
    if left <= 0:
        raise _late(request)
    return replace(request, deadline=left)


async def _watched(
    context: Context, request: Request, followed: AsyncGenerator[Delta], watch: Watch
) -> AsyncGenerator[Delta]:
    """News of a request; a choice that is complete is ended, and ends as by itself."""
    complete: set[int] = set()
    async with aclosing(followed) as deltas:
        async for delta in deltas:
            has_ended = delta.finish_reason is not None
            if not has_ended and delta.choice not in complete and watch(delta):
                complete.add(delta.choice)
                await context.service.end(request.request_id, delta.choice)
            is_cut = delta.finish_reason == "abort" and delta.error is None
            if is_cut and delta.choice in complete:
                delta = msgspec.structs.replace(delta, finish_reason="stop")
            yield delta


def _measure(context: Context, delta: Delta, heard: dict[int, float]) -> None:
    now = perf_counter()
    num_tokens = len(delta.token_ids)
    if num_tokens and delta.choice in heard:
        context.metrics.gap((now - heard[delta.choice]) / num_tokens)
    if num_tokens:
        heard[delta.choice] = now
    if delta.finish_reason in ("stop", "length", "repetition") and delta.usage and delta.timings:
        context.metrics.count_finished(
            delta.finish_reason, delta.usage, delta.timings, is_first=delta.choice == 0
        )


def _count(call: HttpCall, delta: Delta) -> None:
    """For the log: tokens of the whole HTTP request."""
    if delta.usage is not None:
        prompt = delta.usage.prompt_tokens if delta.choice == 0 else 0
        call.counts["prompt_tokens"] = call.counts.get("prompt_tokens", 0) + prompt
        said = call.counts.get("completion_tokens", 0) + delta.usage.completion_tokens
        call.counts["completion_tokens"] = said


def _raise_fault(delta: Delta, request: Request, grammar_field: str | None) -> None:
    """Raise what ended an answer before its end."""
    if isinstance(delta.error, DeadlineError):
        raise _late(request)
    if isinstance(delta.error, GrammarError):
        # A new error: the engine keeps its own, and tells it to all who send the same grammar.
        raise GrammarError(str(delta.error), param=grammar_field)
    if delta.error is not None:
        raise delta.error
    if delta.finish_reason in ("abort", "error"):
        raise EngineClosedError("the server ended this answer before its end. Try again.")


def _late(request: Request) -> DeadlineError:
    return DeadlineError(
        f"the answer took longer than the {request.deadline:g} seconds that it was given. Ask for "
        "fewer tokens, or more time by timeout."
    )


async def _merged(
    sources: Sequence[AsyncGenerator[tuple[int, Delta]]],
) -> AsyncGenerator[tuple[int, Delta]]:
    # Bounded: who reads slowly is waited for, and the engine then makes no more.
    inbox: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(MAX_UNREAD)
    places = asyncio.Semaphore(MAX_AT_ONCE)

    async def pump(source: AsyncGenerator[tuple[int, Delta]]) -> None:
        try:
            async with places, aclosing(source) as pairs:
                async for pair in pairs:
                    await inbox.put(pair)
            await inbox.put(None)
        except Exception as error:  # whatever it is, nobody may wait for ever
            await inbox.put(error)

    tasks = [asyncio.create_task(pump(source)) for source in sources]
    num_open = len(tasks)
    try:
        while num_open:
            item = await inbox.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_generator(deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
    """What can be closed."""
    if isinstance(deltas, AsyncGenerator):
        return cast("AsyncGenerator[Delta]", deltas)
    return _passed_on(deltas)


async def _passed_on(deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
    async for delta in deltas:
        yield delta
