"""Lines for a descriptor, written by a thread: who reads it slowly, or not at all, holds up nobody.

A pipe takes 64 KiB; who writes more before somebody reads stands still, and with a standing event
loop or engine so does everybody who waits for it.
"""

from __future__ import annotations

import io
import os
import queue
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

MAX_LINES: Final = 10_000  # that wait, 2 MB of the usual ones
CLOSE_SECONDS: Final = 1.0  # at the end, for lines that wait


class Lines:
    """Writes lines in their order. Of more than most that wait the rest is dropped and counted.

    dropped: the line that tells how many were dropped; it follows the next that is written.
    """

    def __init__(self, descriptor: int, dropped: Callable[[int], str], *, most: int) -> None:
        self._descriptor, self._tell = descriptor, dropped
        self._waiting: queue.Queue[str | None] = queue.Queue(most)
        self._lock = threading.Lock()
        self._num_dropped = 0
        self._is_over = False
        # Not waited for at exit: it may stand in a write that never ends.
        self._thread = threading.Thread(target=self._write_all, name="cutaway-lines", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Have a line written; returns at once."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.drop()

    def drop(self) -> None:
        """Count a line that is not written."""
        with self._lock:
            self._num_dropped += 1

    def close(self) -> None:
        """Write what waits, in CLOSE_SECONDS at most; what is left then is let go."""
        ends = monotonic() + CLOSE_SECONDS
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(max(0.0, ends - monotonic()))
        self._is_over = True

    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not None and not self._is_over:
            _write(self._descriptor, line)
            with self._lock:
                num_dropped, self._num_dropped = self._num_dropped, 0
            if num_dropped:
                _write(self._descriptor, self._tell(num_dropped))


def _write(descriptor: int, line: str) -> None:
    # By the descriptor: a thread that stands in a write of sys.stderr would hold its lock, without
    # which Python cannot end.
    left = f"{line}\n".encode(errors="backslashreplace")
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # who shares the descriptor has made it so; a line is never torn
            _until_writable(descriptor)
        except OSError:
            return  # nobody reads it any more


def _until_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


class LineStream(io.TextIOBase):
    """A text stream whose lines go to Lines, in the place of sys.stderr.

    descriptor: for who wants to write past it.
    """

    def __init__(self, lines: Lines, descriptor: int) -> None:
        super().__init__()
        self._lines, self._descriptor = lines, descriptor
        self._lock = threading.Lock()
        self._rest = ""

    def write(self, text: str, /) -> int:
        """Take some text; what is no whole line yet waits for its end."""
        with self._lock:
            *whole, self._rest = (self._rest + text).split("\n")
            for line in whole:
                self._lines.put(line)
        return len(text)

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """The descriptor itself."""
        return self._descriptor
