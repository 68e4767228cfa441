"""Work that may take long, beside what people wait for: it begins like other work, then gives way.

On Linux a thread can be one that gives way. Elsewhere all goes on as it began.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SECONDS_AT_FULL_PRIORITY: Final = 0.05  # several times what a usual grammar takes
# What was used of them comes back in this part of the time that goes by: whoever has one after
# another compiled gets the rest at low priority, and a neighbour's usual 99 of 100 tokens wait for
# none of it.
_REFILLED: Final = 0.005
# Where others want all of every core, who gives way gets a three-hundredth of one. That is seen in
# this time, by who had no more than this part of a core; a low priority has a thirtieth.
STARVED_SECONDS: Final = 1.0
LEAST_SHARE: Final = 0.02
_LOW: Final = 15  # of 19
# Linux's clocks by a number; pthread's own may not be asked for a thread that has ended.
CLOCK_OF_PROCESS: Final = 2
CLOCK_OF_THREAD: Final = 6

_making = threading.Lock()


class PriorityAllowance:
    """Seconds that work of this process may still compute like any other."""

    def __init__(
        self,
        seconds: float = SECONDS_AT_FULL_PRIORITY,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._most = self._left = seconds
        self._clock, self._told = clock, clock()
        self._lock = threading.Lock()

    def refill(self) -> float:
        """Add what has come back, and tell the seconds that there are now."""
        with self._lock:
            now = self._clock()
            self._left = min(self._most, self._left + _REFILLED * (now - self._told))
            self._told = now
            return max(0.0, self._left)

    def use(self, seconds: float) -> None:
        """So many were used."""
        with self._lock:
            self._left -= seconds


_allowance = PriorityAllowance()


def give_way(thread: threading.Thread) -> None:
    """Let a thread compute where nobody else does. There is no way back without privileges.

    A low priority would not do: Linux lets whoever computes end a slice of up to 3 ms before
    another that wakes up has the core, whatever their priorities. Idle threads alone stop at once.
    """
    if thread.native_id is not None:
        be_idle(thread.native_id)


def be_idle(number: int = 0) -> None:
    """The same for the thread of that number; 0 is the one that asks."""
    if sys.platform == "linux":
        with suppress(OSError):  # it has ended meanwhile
            os.sched_setscheduler(number, os.SCHED_IDLE, os.sched_param(0))


def run_aside(
    work: Callable[[], T],
    *,
    stack_bytes: int = 0,
    allowance: PriorityAllowance | None = None,
) -> T:
    """What the work gives, from a thread of its own that gives way when it takes long.

    work: is begun a second time, at a low priority, where the first gets next to nothing of a core.
    stack_bytes: of that thread; 0 takes what others have.
    allowance: of seconds by the clock, after which it gives way; None takes this process's.
    Raises: what the work raises.
    """
    allowance = _allowance if allowance is None else allowance
    over = SimpleQueue[_Over[T]]()
    first = _start(work, over, stack_bytes)
    began, seconds = monotonic(), allowance.refill()
    told = _wait(over, seconds)
    if told is None:
        give_way(first)
        told = _watch(first, over)
        if told is None:
            _start(work, over, stack_bytes, begin=_lower_priority)
            told = over.get()
    allowance.use(min(seconds, monotonic() - began))
    if told.raised is not None:
        raise told.raised
    return told.made[0]


class _Over(Generic[T]):
    """What a piece of work came to."""

    def __init__(self, made: tuple[T, ...], raised: BaseException | None) -> None:
        self.made, self.raised = made, raised


def _start(
    work: Callable[[], T],
    over: SimpleQueue[_Over[T]],
    stack_bytes: int,
    *,
    begin: Callable[[], None] = lambda: None,
) -> threading.Thread:
    def run() -> None:
        begin()
        try:
            told = _Over((work(),), None)
        except BaseException as fault:
            told = _Over[T]((), fault)
        over.put(told)

    thread = threading.Thread(target=run, name="cutaway-aside", daemon=True)
    with _making:  # the size is one for all threads that are made
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def _wait(over: SimpleQueue[_Over[T]], seconds: float) -> _Over[T] | None:
    try:
        return over.get(timeout=seconds)
    except Empty:
        return None


def _watch(thread: threading.Thread, over: SimpleQueue[_Over[T]]) -> _Over[T] | None:
    """What comes of it; None as soon as others leave it nothing."""
    computed = computed_seconds(thread.native_id, CLOCK_OF_THREAD)
    while True:
        told = _wait(over, STARVED_SECONDS)
        before, computed = computed, computed_seconds(thread.native_id, CLOCK_OF_THREAD)
        if told is not None or computed < before + LEAST_SHARE * STARVED_SECONDS:
            return told


def computed_seconds(number: int | None, clock: int) -> float:
    """How long a thread or a process has computed; endless where that is not known, or it ended.

    clock: CLOCK_OF_THREAD or CLOCK_OF_PROCESS.
    """
    if sys.platform != "linux" or number is None:
        return math.inf
    try:
        return time.clock_gettime((~number << 3) | clock)
    except OSError:
        return math.inf


def _lower_priority() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW)
