"""What one front has asked of a member's engine: each thing a task, all of them ended with it.

Free of torch and of sockets: what is said goes to whoever the session was made with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Protocol

from cutaway.core.errors import RequestError
from cutaway.core.looks import EventBatch
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.host.faults import refuse
from cutaway.service.engine_messages import (
    Abort,
    Adapt,
    Add,
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
    See,
    Seen,
    Survey,
    Try,
)
from cutaway.service.links.link_messages import Answered, Asked, Introduce, encode
from cutaway.service.service import EngineTerms, Service


class AskedService(Service, Protocol):
    """A service that can go on with what another engine began, and that may start again."""

    @property
    def terms(self) -> EngineTerms:
        """What the engine can take. Known once the service is ready."""
        ...

    @property
    def num_starts(self) -> int:
        """Of the engine so far."""
        ...

    def follow(self, request: Request, told: tuple[ToldChoice, ...] = ()) -> AsyncGenerator[Delta]:
        """News of a request, or of its choices that another engine began."""
        ...


class FrontSession:
    """All that one front waits for.   send: says bytes to it; it never waits."""

    def __init__(self, service: AskedService, send: Callable[[bytes], None]) -> None:
        self._service, self._send = service, send
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._free: dict[str, asyncio.Event] = {}  # cleared while an answer's reader is too slow
        self._others: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, asyncio.Event] = {}  # set when a batch of events was taken
        self._news: list[Delta] = []

    def say(self, said: Answered) -> None:
        """Tell the front; what answers said before is told before."""
        self._tell_news()
        self._send(encode(said))

    def take(self, asked: Asked) -> None:
        """Begin what is asked; what comes of it is said later. Never raises for what is asked."""
        match asked:
            case Add(request):
                self._answer(request, ())
            case Continue(request, told):
                self._answer(request, told)
            case Abort(request_id, None):
                if task := self._answers.get(request_id):
                    task.cancel()
            case Abort(request_id, choice):
                if choice is not None and request_id in self._answers:
                    self._begin_loose(self._service.end(request_id, choice))
            case Hold(request_id, is_held):
                if free := self._free.get(request_id):
                    free.clear() if is_held else free.set()
            case Count(number):
                self._begin(number, self._count(number))
            case Adapt(number, name, path):
                self._begin(number, self._adapt(number, name, path))
            case See(number, looked):
                self._begin(number, self._see(number, self._service.view(looked)))
            case Survey(number, owner):
                self._begin(number, self._see(number, self._service.snapshot(owner)))
            case Listen(number, listened):
                self._begin(number, self._tell(number, self._service.listen(listened)))
            case Try(number, tried):
                self._begin(number, self._tell(number, self._service.compare(tried)))
            case More(number):
                if wanted := self._wanted.get(number):
                    wanted.set()
            case Leave(number):
                if task := self._others.get(number):
                    task.cancel()
            case Introduce():
                pass

    def end(self) -> None:
        """End all that runs for this front."""
        for task in (*self._answers.values(), *self._others.values()):
            task.cancel()

    def _answer(self, request: Request, told: tuple[ToldChoice, ...]) -> None:
        name = request.request_id
        if name in self._answers:
            error = RequestError("an answer of this id runs already.", param="request_id")
            self.say(Failed(name, error))
            return
        self._free[name] = asyncio.Event()
        self._free[name].set()
        task = asyncio.get_running_loop().create_task(self._follow(request, told))
        self._answers[name] = task
        task.add_done_callback(partial(self._forget, name))

    def _forget(self, name: str, _: object) -> None:
        del self._answers[name], self._free[name]

    async def _follow(self, request: Request, told: tuple[ToldChoice, ...]) -> None:
        name, free = request.request_id, self._free[request.request_id]
        try:
            async with aclosing(self._service.follow(request, told)) as deltas:
                async for delta in deltas:
                    self._gather(delta)
                    await free.wait()
        except Exception as fault:
            refuse(lambda error: self.say(Failed(name, error)), fault, "this answer ends here")

    def _gather(self, delta: Delta) -> None:
        """What comes in one turn of the loop is one message: the news of one step."""
        if not self._news:
            asyncio.get_running_loop().call_soon(self._tell_news)
        self._news.append(delta)

    def _tell_news(self) -> None:
        if self._news:
            news, self._news = self._news, []
            self._send(encode(News(news)))

    def _begin(self, number: int, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._try(number, work))
        self._others[number] = task
        task.add_done_callback(lambda _: self._others.pop(number, None))

    def _begin_loose(self, work: Coroutine[None, None, None]) -> None:
        """What nobody waits for; its number is none that a front gives."""
        number = -1 - len(self._others)
        while number in self._others:
            number -= 1
        self._begin(number, work)

    async def _try(self, number: int, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as fault:
            refuse(lambda error: self.say(Failed(number, error)), fault, "this cannot be done")

    async def _count(self, number: int) -> None:
        self.say(EngineCounts(number, await self._service.stats()))

    async def _adapt(self, number: int, name: str, path: str | None) -> None:
        await self._service.adapt(name, path)
        self.say(LoadedAdapters(number, self._service.model.adapters))

    async def _see(self, number: int, look: Coroutine[None, None, bytes]) -> None:
        self.say(Seen(number, await look))

    async def _tell(self, number: int, told: AsyncGenerator[EventBatch]) -> None:
        wanted = self._wanted[number] = asyncio.Event()
        try:
            async with aclosing(told) as batches:
                async for batch in batches:
                    wanted.clear()
                    self.say(Heard(number, batch))
                    if not batch.is_last:
                        await wanted.wait()
        finally:
            del self._wanted[number]
