"""Who is let in while others wait: bounds on answers and prompt tokens, shared between owners.

Free of torch. It knows neither the engine nor where it runs: who enters says what it brings.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType

from cutaway.core.errors import OverloadedError
from cutaway.core.request import Request
from cutaway.service.bounds import SharedBound, TrafficConfig

DRAIN_RETRY_SECONDS = 30  # another server, or the next process here, should answer by then
MOST_RETRY_SECONDS = 60


class Traffic:
    """Requests inside, from the door to the last word."""

    def __init__(
        self,
        config: TrafficConfig,
        *,
        max_sequences: int,
        cache_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        waiting = config.max_waiting or 4 * max_sequences
        self._answers = SharedBound(max_sequences + waiting)
        self._tokens = SharedBound(config.max_waiting_tokens or 8 * cache_tokens)
        self._clock = clock
        self._arrivals: dict[AdmittedRequest, float] = {}  # of those that wait, the oldest first
        self._usual_wait = 1.0
        self._is_closed = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def num_open(self) -> int:
        """Answers inside: a request has n of them."""
        return self._answers.total

    def enter(self, request: Request) -> AdmittedRequest:
        """Let a request in; use the place as a context manager.

        Raises: OverloadedError when too much waits, or nothing new is taken in.
        """
        owner, num_tokens = request.sharer, len(request.prompt_token_ids)
        num_answers = request.params.n
        if (refused := self.refusal(owner, num_answers)) is not None:
            raise refused
        if not self._tokens.has_room(owner, num_tokens):
            raise self._overload(f"{self._tokens.most} tokens of prompts that wait")
        self._answers.take(owner, num_answers)
        self._tokens.take(owner, num_tokens)
        place = AdmittedRequest(self, owner, num_answers=num_answers, num_tokens=num_tokens)
        self._arrivals[place] = self._clock()
        self._is_empty.clear()
        return place

    def refusal(
        self, owner: str, num_answers: int = 1, *, num_coming: int = 0
    ) -> OverloadedError | None:
        """Why an owner gets no more answers now, whatever is asked; None where it may.

        num_coming: requests of the owner that have not entered yet.
        """
        if self._is_closed:
            return OverloadedError(
                "the engine is about to end and takes nothing new in. Ask another, or try again "
                "later.",
                retry_after=DRAIN_RETRY_SECONDS,
            )
        if self._answers.has_room(owner, num_answers, coming=num_coming):
            return None
        return self._overload(f"{self._answers.most} answers at once")

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_closed = True

    async def drain(self, seconds: float) -> None:
        """Let nobody in and wait until all have left, for so long at most."""
        self.close()
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
        except TimeoutError:
            return

    def begin(self, place: AdmittedRequest) -> None:
        """The first news of a request: its prompt waits no longer."""
        arrived = self._arrivals.pop(place, None)
        if arrived is not None:
            self._tokens.give(place.owner, place.num_tokens)
            self._usual_wait += (self._clock() - arrived - self._usual_wait) / 8

    def leave(self, place: AdmittedRequest) -> None:
        """A request has ended, or nobody waits for it any more."""
        if self._arrivals.pop(place, None) is not None:
            self._tokens.give(place.owner, place.num_tokens)
        self._answers.give(place.owner, place.num_answers)
        if not self._answers.total:
            self._is_empty.set()

    def _overload(self, most: str) -> OverloadedError:
        """What waits now has its turn in about the time that others waited."""
        oldest = next(iter(self._arrivals.values()), math.inf)
        wait = max(self._usual_wait, self._clock() - oldest)
        seconds = min(MOST_RETRY_SECONDS, max(1, math.ceil(wait)))
        return OverloadedError(
            f"too much waits already: the engine takes {most}, and of one owner no more than "
            f"leaves room for others. Try again in {seconds} seconds.",
            retry_after=seconds,
        )


class AdmittedRequest:
    """One request inside."""

    def __init__(self, traffic: Traffic, owner: str, *, num_answers: int, num_tokens: int) -> None:
        self._traffic = traffic
        self.owner = owner
        self.num_answers = num_answers
        self.num_tokens = num_tokens
        self._has_news = False

    def __enter__(self) -> AdmittedRequest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._traffic.leave(self)

    def begin(self) -> None:
        """There is news of it; may be said again."""
        if not self._has_news:
            self._has_news = True
            self._traffic.begin(self)
