"""Long work in pieces: it takes a breath between two of them, and others go on meanwhile.

A view, a vocabulary or a file is plain code, deep in loops; it says breathe() where it could stop.
Run by in_turns it stops there, in a thread that is its own, until its next turn: only one of the
two threads runs at any moment, so nothing of it needs a lock. Anywhere else breathe() is nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Generic, TypeVar

T = TypeVar("T")

PIECE_SECONDS = 0.005  # a turn lasts so long at least: two turns cost about 0.05 ms
# As renderings rest (text/meter.py): a third of the time at the most, after a second of work.
REST_AFTER_SECONDS, LEAST_REST_SECONDS, MOST_REST_SECONDS = 0.002, 0.0001, 0.001
REST_SHARE = 0.001  # of what was computed so far


def breathe() -> None:
    """Stop here if others should have a turn. To be called about every millisecond of work."""
    turns = getattr(_here, "turns", None)
    if turns is not None:
        turns.breathe()


def pause() -> bool:
    """Stop here if others should have a turn; False, for who asks whether to go on no further."""
    breathe()
    return False


def rest() -> None:
    """Stop here, however little was done since the last time."""
    turns = getattr(_here, "turns", None)
    if turns is not None:
        turns.rest()


def read_own_clock() -> float:
    """A clock that stands still while this thread's work waits for its next turn."""
    turns = getattr(_here, "turns", None)
    return perf_counter() - (0.0 if turns is None else turns.seconds_away)


def in_turns(work: Callable[[], T]) -> Generator[None, None, T]:
    """What work gives, in as many steps as it takes; closing the generator ends it at a breath.

    Raises: what work raises.
    """
    turns = _Turns(work)
    try:
        while turns.go():
            yield
    finally:
        turns.leave()
    return turns.result()


@contextmanager
def resting() -> Generator[None]:
    """Have breathe() rest a moment within this block, so that other threads get the interpreter.

    A thread that wants it waits else half a millisecond, each time and for each that computes.
    """
    before = getattr(_here, "turns", None)
    _here.turns = _Rests()
    try:
        yield
    finally:
        _here.turns = before


class _Rests:
    """Sleeps now and then: the longer, the more was computed."""

    def __init__(self) -> None:
        self._began = self._rested = perf_counter()
        self.seconds_away = 0.0

    def breathe(self) -> None:
        """Called by the work."""
        if perf_counter() - self._rested >= REST_AFTER_SECONDS:
            self.rest()

    def rest(self) -> None:
        """Called by the work."""
        left = perf_counter()
        sleep(min(MOST_REST_SECONDS, LEAST_REST_SECONDS + REST_SHARE * (left - self._began)))
        self._rested = perf_counter()
        self.seconds_away += self._rested - left


class _LeftError(BaseException):
    """Nobody waits for the work any more; no handler of it may take this for a fault."""


class _Turns(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._began = self.seconds_away = 0.0
        self._has_ended = self._is_left = False
        self._found: list[T] = []
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def go(self) -> bool:
        """One turn. Whether there are more."""
        self._began = perf_counter()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cutaway-turns", daemon=True)
            self._thread.start()
        else:
            self._ours.release()
        self._theirs.acquire()
        return not self._has_ended

    def leave(self) -> None:
        """End the work, wherever it stands."""
        if self._thread is not None and not self._has_ended:
            self._is_left = True
            self.go()
        if self._thread is not None:
            self._thread.join()

    def result(self) -> T:
        if self._fault is not None:
            raise self._fault
        return self._found[0]

    def breathe(self) -> None:
        """Called by the work."""
        if perf_counter() - self._began >= PIECE_SECONDS:
            self.rest()

    def rest(self) -> None:
        """Called by the work."""
        if self._is_left:
            return  # who is left ends in one go
        left = perf_counter()
        self._theirs.release()
        self._ours.acquire()
        self.seconds_away += perf_counter() - left
        if self._is_left:
            raise _LeftError

    def _run(self) -> None:
        _here.turns = self
        try:
            self._found.append(self._work())
        except _LeftError:
            pass
        except BaseException as fault:
            self._fault = fault
        self._has_ended = True
        self._theirs.release()


_here = threading.local()
