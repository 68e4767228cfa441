"""Threads for what would hold the event loop: parsing, templates, tokenization, long answers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from cutaway.core.errors import OverloadedError
from cutaway.server.entry.owner import who_asks
from cutaway.service.shared_bound import SharedBound

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS = 2  # they share one interpreter: more would only take turns
MAX_WAITING = 256


class Worker:
    """A few threads for which owners take turns, and a bound on what waits for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="cutaway-request")
        self._turns = _OwnerTurns(NUM_THREADS)
        self._open = SharedBound(NUM_THREADS + MAX_WAITING)

    async def take_in(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function finds in a new request.

        Raises: OverloadedError when too many wait to be read already.
        """
        owner = who_asks()
        if not self._open.has_room(owner):
            raise OverloadedError(
                f"{self._open.total} requests wait to be read. Try again in a second.",
                retry_after=1,
            )
        self._open.take(owner)
        try:
            return await self.run(work, *args, **kwargs)
        finally:
            self._open.give(owner)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, for a request whose answer is there: it is never refused."""
        loop = asyncio.get_running_loop()
        async with self._turns.one(who_asks()):
            return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """End the threads; what they compute is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _OwnerTurns:
    """A number of places for which owners wait in turn, and within one owner in order."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def one(self, owner: str) -> AsyncGenerator[None]:
        """A place for as long as the block lasts."""
        if self._num_free:
            self._num_free -= 1
        else:
            await self._called(owner)
        try:
            yield
        finally:
            self._pass_on()

    async def _called(self, owner: str) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self._pass_on()  # it had been called
            raise

    def _pass_on(self) -> None:
        """Call whose turn it is. Who no longer waits is passed over."""
        while self._waiting:
            owner, queue = next(iter(self._waiting.items()))
            called = queue.popleft()
            self._waiting.move_to_end(owner)
            if not queue:
                del self._waiting[owner]
            if not called.done():
                called.set_result(None)
                return
        self._num_free += 1
