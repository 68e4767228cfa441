"""Work that may take long, beside what people wait for: it begins like other work, then gives way.

On Linux a thread has a priority of its own. Elsewhere all goes on as it began.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, TypeVar

T = TypeVar("T")

SECONDS_AT_FULL_PRIORITY: Final = 0.05  # several times what a usual grammar takes
# What was used of them comes back in this part of the time that goes by: whoever has one after
# another compiled gets the rest at low priority, and a neighbour's usual 99 of 100 tokens wait for
# none of it.
_REFILLED: Final = 0.005
_LOW: Final = 15  # of 19: a core that is wanted goes to it for a thirtieth of the time

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
    """Let a thread compute where nobody else does. There is no way back without privileges."""
    if sys.platform == "linux" and thread.native_id is not None:
        with suppress(OSError):  # it has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, thread.native_id, _LOW)


def run_aside(
    work: Callable[[], T],
    *,
    stack_bytes: int = 0,
    allowance: PriorityAllowance | None = None,
) -> T:
    """What the work gives, from a thread of its own that gives way when it takes long.

    stack_bytes: of that thread; 0 takes what others have.
    allowance: of seconds by the clock, after which it gives way; None takes this process's.
    Raises: what the work raises.
    """
    allowance = _allowance if allowance is None else allowance
    made: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as fault:
            raised.append(fault)

    thread = threading.Thread(target=run, name="cutaway-aside", daemon=True)
    with _making:  # the size is one for all threads that are made
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    began, seconds = monotonic(), allowance.refill()
    thread.join(seconds)
    if thread.is_alive():
        give_way(thread)
        thread.join()
    allowance.use(min(seconds, monotonic() - began))
    if raised:
        raise raised[0]
    return made[0]
