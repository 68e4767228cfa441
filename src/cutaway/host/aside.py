"""Work that may take long, beside what people wait for: it begins like other work, then gives way.

On Linux a thread has a priority of its own. Elsewhere all goes on as it began.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

SECONDS_AT_FULL_PRIORITY: Final = 0.05  # several times what a usual grammar takes
_LOW: Final = 15  # of 19: a core that is wanted goes to it for a thirtieth of the time

_making = threading.Lock()


def give_way(thread: threading.Thread) -> None:
    """Let a thread compute where nobody else does. There is no way back without privileges."""
    if sys.platform == "linux" and thread.native_id is not None:
        with suppress(OSError):  # it has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, thread.native_id, _LOW)


def run_aside(
    work: Callable[[], T],
    *,
    stack_bytes: int = 0,
    seconds: float = SECONDS_AT_FULL_PRIORITY,
) -> T:
    """What the work gives, from a thread of its own that gives way when it takes long.

    stack_bytes: of that thread; 0 takes what others have.
    seconds: by the clock, after which it gives way.
    Raises: what the work raises.
    """
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
    thread.join(seconds)
    if thread.is_alive():
        give_way(thread)
        thread.join()
    if raised:
        raise raised[0]
    return made[0]
