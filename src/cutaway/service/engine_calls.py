"""What was asked of an engine over a link and is not answered yet, and who waits for it.

Free of torch. It knows neither where the engine runs nor how it is reached: who says a command is
given, and what comes back is handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count
from typing import Protocol

from cutaway.core.errors import CutawayError, EngineClosedError, MovedError
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.service.engine_messages import (
    Abort,
    Adapt,
    Add,
    Command,
    Continue,
    Count,
    EngineCounts,
    Failed,
    Heard,
    Hold,
    Leave,
    Listen,
    LoadedAdapters,
    More,
    News,
    Report,
    See,
    Seen,
    Survey,
    Try,
)
from cutaway.service.inbox import Inbox
from cutaway.service.service import AdapterCard, EngineStats
from cutaway.service.traffic import AdmittedRequest

_Events = asyncio.Queue[EventBatch | CutawayError]


class Hearer(Protocol):
    """Whoever commands are said to."""

    def say(self, command: Command) -> None:
        """Tell it something; who is gone does not hear."""
        ...


class EngineCalls:
    """All that waits for one engine, whichever link leads to it at the moment.

    alive: the engine's end of the link; raises EngineClosedError where there is none.
    """

    def __init__(self, alive: Callable[[], Hearer]) -> None:
        self._alive = alive
        self.open: dict[str, Inbox] = {}
        self._counts: dict[int, asyncio.Future[EngineStats]] = {}
        self._looks: dict[int, asyncio.Future[bytes]] = {}
        self._adapted: dict[int, asyncio.Future[tuple[AdapterCard, ...]]] = {}
        self.feeds: dict[int, _Events] = {}
        self._numbers = count()

    async def follow(
        self,
        request: Request,
        told: tuple[ToldChoice, ...],
        enter: Callable[[], AdmittedRequest],
    ) -> AsyncGenerator[Delta]:
        """News of one request until it is done. Leaving the loop ends it.

        told: where another engine began it: its choices that have not ended.
        enter: gives it a place, which begins with the first news.
        Raises: what enter does; what the engine says of it; EngineClosedError; MovedError when
        move was called.
        """
        with enter() as place:
            life = self._alive()
            inbox = self.open[request.request_id] = Inbox()
            num_open = len(told) or request.params.n
            try:
                life.say(Continue(request, told) if told else Add(request))
                while num_open:
                    news = await inbox.get(len(self.open))
                    if inbox.is_drained():
                        life.say(Hold(request.request_id, is_held=False))
                    if isinstance(news, BaseException):
                        num_open = num_open if isinstance(news, MovedError) else 0
                        raise news
                    place.begin()
                    num_open -= news.finish_reason is not None
                    yield news
            finally:
                del self.open[request.request_id]
                if num_open:
                    life.say(Abort(request.request_id))

    def move(self, request_id: str) -> None:
        """Have who follows a request go on elsewhere; what was told before is told first."""
        inbox = self.open.get(request_id)
        if inbox is not None:
            inbox.put_nowait(MovedError("this answer goes on in another engine."))

    async def stats(self) -> EngineStats:
        """What the engine holds between two steps. Raises: EngineClosedError."""
        life = self._alive()
        number = next(self._numbers)
        told = self._counts[number] = asyncio.get_running_loop().create_future()
        try:
            life.say(Count(number))
            return await told
        finally:
            del self._counts[number]

    async def adapt(self, name: str, path: str | None) -> tuple[AdapterCard, ...]:
        """Load an adapter, or unload it where there is no path; returns those loaded then.

        Raises: ConfigError, ModelFormatError, EngineClosedError.
        """
        life = self._alive()
        number = next(self._numbers)
        told = self._adapted[number] = asyncio.get_running_loop().create_future()
        try:
            life.say(Adapt(number, name, path))
            return await told
        finally:
            del self._adapted[number]

    async def view(self, asked: ViewRequest) -> bytes:
        """What a view of an answer gives. Raises: ReplayError, RequestError, EngineClosedError."""
        number = next(self._numbers)
        return await self._seen(number, See(number, asked))

    async def snapshot(self, owner: str) -> bytes:
        """What the engine holds now, as somebody may see it. Raises: EngineClosedError."""
        number = next(self._numbers)
        return await self._seen(number, Survey(number, owner))

    async def _seen(self, number: int, command: See | Survey) -> bytes:
        life = self._alive()
        told = self._looks[number] = asyncio.get_running_loop().create_future()
        try:
            life.say(command)
            return await told
        finally:
            del self._looks[number]
            if told.cancelled():  # whoever asked has left: nothing is computed for nobody
                life.say(Leave(number))

    async def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer, while it is made or afterwards, until the last.

        Raises: ReplayError, OverloadedError, EngineClosedError.
        """
        number = next(self._numbers)
        async with aclosing(self._told(number, Listen(number, listened))) as batches:
            async for batch in batches:
                yield batch

    async def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, and in the end what it found. Leaving the loop ends it.

        Raises: ReplayError, RequestError, OverloadedError, EngineClosedError.
        """
        number = next(self._numbers)
        async with aclosing(self._told(number, Try(number, tried))) as batches:
            async for batch in batches:
                yield batch

    async def _told(self, number: int, command: Listen | Try) -> AsyncGenerator[EventBatch]:
        life = self._alive()
        inbox = self.feeds[number] = _Events()
        try:
            life.say(command)
            while True:
                heard = await inbox.get()
                if isinstance(heard, CutawayError):
                    raise heard
                yield heard
                if heard.is_last:
                    return
                life.say(More(number))
        finally:
            del self.feeds[number]
            life.say(Leave(number))

    def hear(self, said: Report, life: Hearer | None) -> None:
        """Pass an answer on to whoever waits for it; they may have left.

        life: who said it, to be told of readers that are slow.
        """
        match said:
            case News(deltas):
                for delta in deltas:
                    inbox = self.open.get(delta.request_id)
                    if inbox is None:
                        continue  # nobody listens any more
                    inbox.put_nowait(delta)
                    if inbox.is_full() and life is not None:
                        life.say(Hold(delta.request_id, is_held=True))
            case Failed(asker, error):
                self._fail(asker, error)
            case EngineCounts(number, stats):
                told = self._counts.get(number)
                if told is not None and not told.done():
                    told.set_result(stats)
            case LoadedAdapters(number, adapters):
                waiting = self._adapted.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(adapters)
            case Seen(number, frame):
                look = self._looks.get(number)
                if look is not None and not look.done():
                    look.set_result(frame)
            case Heard(number, told):
                feed = self.feeds.get(number)
                if feed is not None:
                    feed.put_nowait(told)
            case _:
                pass  # of the engine itself

    def _fail(self, asker: int | str, error: CutawayError) -> None:
        """Tell whoever waits for an answer, or for what has a number; they may have left."""
        if isinstance(asker, str):
            inbox = self.open.get(asker)
        else:
            inbox = self.feeds.get(asker)
            told = self._looks.get(asker) or self._counts.get(asker) or self._adapted.get(asker)
            if told is not None and not told.done():
                told.set_exception(error)
        if inbox is not None:
            inbox.put_nowait(error)

    def fail_looks(self, why: str) -> None:
        """The engine hangs: who waits for a look is not kept waiting with it."""
        for waiting in (*self._counts.values(), *self._looks.values()):
            if not waiting.done():
                waiting.set_exception(EngineClosedError(why))

    def fail_all(self, why: str) -> None:
        """The engine is gone: everybody who waits for it hears so."""
        for inbox in (*self.open.values(), *self.feeds.values()):
            inbox.put_nowait(EngineClosedError(why))
        for told in (*self._counts.values(), *self._looks.values(), *self._adapted.values()):
            if not told.done():
                told.set_exception(EngineClosedError(why))
