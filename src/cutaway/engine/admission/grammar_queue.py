"""Requests whose grammar is being compiled: they wait beside the batch, and nobody for them.

Free of torch. It knows futures and nothing of the compiler or of tokens.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting")
Made = TypeVar("Made")


class Pending(Generic[Waiting, Made]):
    """What waits for a future, in the order of arrival."""

    def __init__(self) -> None:
        self._futures: dict[Waiting, Future[Made]] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    def add(self, waiting: Waiting, made: Future[Made]) -> None:
        """Queue one behind the others until its future is done."""
        self._futures[waiting] = made

    def discard(self, waiting: Waiting) -> None:
        """Forget one that waits; others may wait for the same future."""
        self._futures.pop(waiting, None)

    def take_done(self, *, seconds: float = 0.0) -> list[tuple[Waiting, Future[Made]]]:
        """Take out whose future is done; with seconds, wait so long for the first."""
        if not self._futures:
            return []
        if seconds:
            wait(self._futures.values(), timeout=seconds, return_when=FIRST_COMPLETED)
        done = [(each, made) for each, made in self._futures.items() if made.done()]
        for each, _ in done:
            del self._futures[each]
        return done
