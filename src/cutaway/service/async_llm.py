"""The front for asyncio: the engine steps in a thread of its own, answers stream to coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar, Unpack

from cutaway.core.errors import CutawayError, EngineClosedError
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.engine.engine_settings import EngineSettings
from cutaway.host.faults import again, note, refuse
from cutaway.replay.plan import Level
from cutaway.replay.verify import Verdict
from cutaway.service import engine_loop
from cutaway.service.feeds import Feeds
from cutaway.service.generations import Generation
from cutaway.service.inbox import Inbox
from cutaway.service.llm import LLM, Messages, Params, Prompt, TemplateOptions
from cutaway.service.looking import ViewPlaces
from cutaway.service.spelling import spell
from cutaway.service.view_queue import ViewQueue
from cutaway.views.parts.view import Shown

T = TypeVar("T")

# Called on the engine's thread with news of one request, or with what ended it.
_Deliver = Callable[[Delta | BaseException], None]
_Hear = Callable[[EventBatch | CutawayError], None]

# Of an event loop that was closed while something was made for it: nobody waits there.
_CLOSED_LOOP = suppress(RuntimeError)


class AsyncLLM:
    """A model in this process, for any number of coroutines at once: the verbs are those of LLM.

    settings: as for LLM. Use as an async context manager, or call close().
    """

    def __init__(
        self, model: str | os.PathLike[str] = "smollm2", **settings: Unpack[EngineSettings]
    ) -> None:
        self._llm = LLM(model, **settings)
        self._view_queue = ViewQueue(self._llm.engine)
        self._feeds = Feeds(self._llm.engine)
        self._commands: engine_loop.Commands = SimpleQueue()
        self._open: dict[str, _Deliver] = {}
        self._waiting: dict[object, Callable[[CutawayError], None]] = {}  # beside answers
        self._lock = threading.Lock()  # between submitting and closing
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="cutaway-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._llm!r}"

    async def close(self) -> None:
        """End every open answer and the engine's thread. What is closed may be closed again."""
        with self._lock:
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def sampling(self) -> SamplingParams:
        """The model's own recommended sampling, which acts where nothing is given."""
        return self._llm.sampling

    @property
    def lora(self) -> str:
        """The adapter that answers where nothing is said; empty without one."""
        return self._llm.lora

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        control: bool = False,
        lora: str | None = None,
    ) -> list[Generation]:
        """Continue each prompt, as LLM.generate does: results come in the order of the prompts.

        Raises: RequestError for a bad prompt or parameter, before anything runs; the error of
        the first answer that failed.
        """
        requests = self._llm.requests(prompts, params, control=control, lora=lora)
        if len(requests) == 1:
            return [await self._whole(requests[0])]
        under_way = [asyncio.ensure_future(self._whole(each)) for each in requests]
        try:
            return list(await asyncio.gather(*under_way))
        finally:
            for each in under_way:
                each.cancel()

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        lora: str | None = None,
        **template: Unpack[TemplateOptions],
    ) -> Generation:
        """Answer a conversation: dicts with role and content, as in the OpenAI API."""
        token_ids = self._llm.encode_chat(messages, **template)
        return await self._whole(self._llm.request(token_ids, params, lora=lora), messages)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        control: bool = False,
        lora: str | None = None,
    ) -> AsyncGenerator[Delta]:
        """Continue a prompt. Leaving the loop, or cancelling it, ends the request.

        Raises: RequestError when the prompt or a parameter does not fit.
        """
        return self._spell(self._llm.request(prompt, params, control=control, lora=lora))

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        lora: str | None = None,
        **template: Unpack[TemplateOptions],
    ) -> AsyncGenerator[Delta]:
        """Answer a conversation, as stream does."""
        return self.stream(self._llm.encode_chat(messages, **template), params, lora=lora)

    async def verify(
        self,
        answer: Generation,
        *,
        choice: int = 0,
        level: Level = "shape-faithful",
        prefill_chunk: int | None = None,
    ) -> Verdict:
        """Run a recorded answer again, as LLM.verify does; other answers wait meanwhile."""
        return await self.ask(
            lambda _: self._llm.verify(
                answer, choice=choice, level=level, prefill_chunk=prefill_chunk
            )
        )

    async def view(
        self, answer: Generation, name: str, *, choice: int = 0, **places: Unpack[ViewPlaces]
    ) -> Shown:
        """What a view shows of an answer, as LLM.view does; other answers wait meanwhile."""
        return await self.ask(lambda _: self._llm.view(answer, name, choice=choice, **places))

    def encode(self, prompt: Prompt, *, control: bool = False) -> list[int]:
        """Token ids of a raw prompt: plain text, with a BOS where the model wants one."""
        return self._llm.encode(prompt, control=control)

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        template_options: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of a conversation through the model's chat template."""
        return self._llm.encode_chat(messages, tools=tools, template_options=template_options)

    def decode(self, token_ids: Iterable[int], *, skip_control: bool = False) -> str:
        """The text of token ids; skip_control leaves out control tokens, as answers do."""
        return self._llm.decode(token_ids, skip_control=skip_control)

    async def _whole(self, request: Request, messages: Messages | None = None) -> Generation:
        async with aclosing(self._spell(request)) as deltas:
            return self._llm.generation(request, [delta async for delta in deltas], messages)

    async def _spell(self, request: Request) -> AsyncGenerator[Delta]:
        tokenizer = self._llm.engine.model.tokenizer
        async with aclosing(self.follow(request)) as deltas:
            async for delta in deltas:
                yield spell(delta, tokenizer)

    async def ask(self, question: Callable[[Engine], T]) -> T:
        """What a function finds of the engine, called between two steps.

        Raises: what the function raises.
        """

        def ask(put: Callable[[T | Exception], None]) -> None:
            try:
                found = question(self._llm.engine)
            except Exception as fault:
                put(fault)
            else:
                put(found)

        return await self._once(lambda _, put: ask(put))

    async def look(self, asked: ViewRequest) -> bytes:
        """What a view of an answer gives, as views/parts/frame.py writes it, when there is no work.

        Raises: ReplayError, RequestError.
        """
        return await self._once(lambda name, tell: self._view_queue.add(name, asked, tell))

    async def _once(self, begin: Callable[[object, Callable[[T | Exception], None]], None]) -> T:
        """The one thing that is told of what begins on the engine's thread."""
        ours = asyncio.get_running_loop()
        answer: asyncio.Future[T] = ours.create_future()

        def put(found: T | Exception) -> None:
            if answer.done():  # whoever asked may have left
                return
            if isinstance(found, StopIteration):
                answer.set_exception(RuntimeError("StopIteration was raised"))  # as in coroutines
            elif isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def tell(found: T | Exception) -> None:
            with _CLOSED_LOOP:
                ours.call_soon_threadsafe(put, found)

        name = object()
        self._submit(lambda: self._begin(name, tell, lambda: begin(name, tell)))
        try:
            return await answer
        finally:
            with suppress(EngineClosedError):
                self._submit(lambda: self._leave(name))

    async def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer, while it is made or afterwards, until the last.

        No more are made before those of the last batch were taken.
        Raises: ReplayError, OverloadedError.
        """
        async with aclosing(
            self._told(lambda name, tell: self._feeds.open(name, listened, tell))
        ) as batches:
            async for batch in batches:
                yield batch

    async def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, and in the end what it found. Leaving the loop ends it.

        Raises: ReplayError, RequestError, OverloadedError.
        """
        async with aclosing(
            self._told(lambda name, tell: self._view_queue.compare(name, tried, tell))
        ) as batches:
            async for batch in batches:
                yield batch

    async def _told(self, begin: Callable[[object, _Hear], None]) -> AsyncGenerator[EventBatch]:
        ours = asyncio.get_running_loop()
        inbox: asyncio.Queue[EventBatch | CutawayError] = asyncio.Queue()
        name = object()

        def tell(told: EventBatch | CutawayError) -> None:
            with _CLOSED_LOOP:
                ours.call_soon_threadsafe(inbox.put_nowait, told)

        self._submit(lambda: self._begin(name, tell, lambda: begin(name, tell)))
        try:
            while True:
                told = await inbox.get()
                if isinstance(told, CutawayError):
                    raise told
                yield told
                if told.is_last:
                    return
                self._submit(lambda: self._feeds.more(name))
        finally:
            with suppress(EngineClosedError):
                self._submit(lambda: self._leave(name))

    async def follow(
        self, request: Request, told: tuple[ToldChoice, ...] = ()
    ) -> AsyncGenerator[Delta]:
        """News of a request that is made already, as stream does.

        While its reader is slow no more of it is made, and others have its place.
        told: as for Engine.add, where another engine began it.
        """
        ours, inbox = asyncio.get_running_loop(), Inbox()

        def take_in(news: Delta | BaseException) -> None:
            inbox.put_nowait(news)
            if inbox.is_full():
                self._hold(request.request_id, is_held=True)

        def deliver(news: Delta | BaseException) -> None:
            ours.call_soon_threadsafe(take_in, news)

        self._submit(lambda: self._start(request, told, deliver))
        num_open = len(told) or request.params.n
        try:
            while num_open:
                news = await inbox.get()
                if inbox.is_drained():
                    self._hold(request.request_id, is_held=False)
                if isinstance(news, BaseException):
                    raise news
                num_open -= news.finish_reason is not None
                yield news
        finally:
            with suppress(EngineClosedError):  # a closed engine has nothing left to forget
                self._submit(lambda: self._forget(request.request_id))

    def _hold(self, request_id: str, *, is_held: bool) -> None:
        """Have no more made of a request, or go on with it; a closed engine makes nothing."""
        with suppress(EngineClosedError):
            self._submit(lambda: again(lambda: self._llm.engine.hold(request_id, is_held=is_held)))

    def _submit(self, command: Callable[[], None]) -> None:
        with self._lock:
            if self._is_closed:
                raise EngineClosedError("the engine is closed; make a new AsyncLLM.")
            self._commands.put(command)

    # Everything below runs on the engine's thread.

    def _run(self) -> None:
        ended: BaseException = EngineClosedError("the engine was closed while this answer ran.")
        try:
            engine_loop.run(
                self._llm.engine, self._view_queue, self._feeds, self._commands, self._tell
            )
        except BaseException as fault:
            ended = fault  # nobody may wait for ever, whatever went wrong
            raise
        finally:
            with self._lock:
                self._is_closed = True
            self._end_all(ended)

    def _end_all(self, why: BaseException) -> None:
        """Tell everybody who waits; whom that fails, fails alone."""
        while not self._commands.empty():  # requests that came too late are told as well
            command = self._commands.get()
            if command is not None:
                _alone(command)
        for request_id, deliver in list(self._open.items()):
            _alone(partial(deliver, why))
            _alone(partial(self._forget, request_id))
        for tell in list(self._waiting.values()):
            words = "the engine was closed before it had come to this."
            _alone(partial(tell, EngineClosedError(words)))

    def _tell(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            deliver = self._open.get(delta.request_id)
            if deliver is None:
                continue
            try:
                deliver(delta)
            except Exception:  # its event loop is closed: nobody listens any more
                self._forget(delta.request_id)

    def _begin(
        self, name: object, tell: Callable[[CutawayError], None], begin: Callable[[], None]
    ) -> None:
        self._waiting[name] = tell
        try:
            begin()
        except Exception as fault:
            refuse(tell, fault, "this cannot be begun")

    def _leave(self, name: object) -> None:
        self._waiting.pop(name, None)
        self._feeds.leave(name)
        self._view_queue.leave(name)

    def _start(self, request: Request, told: tuple[ToldChoice, ...], deliver: _Deliver) -> None:
        error = engine_loop.take_in(self._llm.engine, request, told)
        if error is not None:
            with _CLOSED_LOOP:
                deliver(error)
            return
        self._open[request.request_id] = deliver

    def _forget(self, request_id: str) -> None:
        """Nobody listens any more: what still runs is aborted."""
        self._open.pop(request_id, None)
        again(partial(self._llm.engine.abort, request_id))


def _alone(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as fault:
        note("somebody could not be told that the engine ends.", fault)
