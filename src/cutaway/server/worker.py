"""Threads for what would hold the event loop: parsing, templates, tokenization, long answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from cutaway.core.errors import OverloadedError

P = ParamSpec("P")
T = TypeVar("T")

NUM_THREADS = 2  # they share one interpreter: more would only take turns
MAX_WAITING = 256


class Worker:
    """A few threads, and a bound on the requests that wait to be read by them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="cutaway-request")
        self._num_open = 0

    async def take_in(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function finds in a new request.

        Raises: OverloadedError when too many wait to be read already.
        """
        if self._num_open >= NUM_THREADS + MAX_WAITING:
            raise OverloadedError(
                f"{self._num_open} requests wait to be read. Try again in a second.", retry_after=1
            )
        self._num_open += 1
        try:
            return await self.run(work, *args, **kwargs)
        finally:
            self._num_open -= 1

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, for a request whose answer is there: it is never refused."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """End the threads; what they compute is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
