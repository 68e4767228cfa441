"""Threads for what would hold the event loop: parsing, templates, tokenization, long answers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from cutaway.core.errors import OverloadedError
from cutaway.host.turns import resting
from cutaway.server.entry.owner import who_asks
from cutaway.service.bounds import SharedBound

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS = 2  # they share one interpreter: more would only take turns
MAX_WAITING = 256
# Bytes of a body that may take seconds. One thread less reads such ones, so that who asks a
# question waits for none of them; half a minute it was where one client sent eight of 1.5 MB.
LARGE_BYTES = 64 * 1024


class Worker:
    """A few threads for which owners take turns, and a bound on what waits for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="cutaway-request")
        self._turns = _OwnerTurns(NUM_THREADS)
        self._large = _OwnerTurns(NUM_THREADS - 1)
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
            num_bytes = sum(len(each) for each in args if isinstance(each, bytes))
            return await self._run(lambda: work(*args, **kwargs), is_large=num_bytes > LARGE_BYTES)
        finally:
            self._open.give(owner)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, for a request whose answer is there: it is never refused."""
        return await self._run(lambda: work(*args, **kwargs))

    async def _run(self, work: Callable[[], T], *, is_large: bool = False) -> T:
        owner, taken = who_asks(), list[_OwnerTurns]()
        try:
            for turns in (self._large, self._turns) if is_large else (self._turns,):
                await turns.enter(owner)
                taken.append(turns)
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._threads, lambda: _rested(work, is_large))
        except BaseException:
            _leave(taken)
            raise

        def end(ended: asyncio.Future[T]) -> None:
            _leave(taken)
            if not ended.cancelled():
                ended.exception()  # nobody may be left to hear it

        # A thread goes on whose client has gone, and its places are taken until it has ended.
        future.add_done_callback(end)
        try:
            return await asyncio.shield(future)
        finally:
            # It keeps what the work raised, whose way leads through here: nobody would let go of
            # the body that is refused until garbage is looked for.
            del future

    def close(self) -> None:
        """End the threads; what they compute is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _OwnerTurns:
    """A number of places for which owners wait in turn, and within one owner in order."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, owner: str) -> None:
        """Wait for a place; it is to be left."""
        if self._num_free:
            self._num_free -= 1
        else:
            await self._called(owner)

    async def _called(self, owner: str) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self.leave()  # it had been called
            raise

    def leave(self) -> None:
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


def _leave(taken: list[_OwnerTurns]) -> None:
    while taken:
        taken.pop().leave()


def _rested(work: Callable[[], T], is_large: bool) -> T:
    """What it gives; while a large one is read, others have the interpreter now and then."""
    if not is_large:
        return work()
    with resting():
        return work()
