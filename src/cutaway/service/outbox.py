"""What is said through a socket without waiting for who reads it: slow ones stall no step.

What does not fit into the socket waits here, up to a bound, and a thread writes it on.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from time import monotonic
from typing import Final

MOST_BYTES: Final = 64 * 2**20  # that wait: minutes of news of a full batch


class Outbox:
    """Writes messages in their order. Over most bytes that wait, who says more waits too."""

    def __init__(self, link: socket.socket, *, most: int = MOST_BYTES) -> None:
        self._link, self._most = link, most
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._fault: OSError | None = None
        self._changed = threading.Condition()
        # Not waited for at exit: it may stand in a write that never ends.
        threading.Thread(target=self._write_on, name="cutaway-outbox", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Have a message written. Raises: OSError when nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_bytes <= self._most or self._fault)
            if self._fault is not None:
                raise self._fault
            if not self._waiting:
                data = data[self._send_now(data) :]
            if data:
                self._waiting.append(data)
                self._num_bytes += len(data)
                self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Wait until all is written, for so long at most."""
        ends = monotonic() + seconds
        with self._changed:
            self._changed.wait_for(
                lambda: not self._num_bytes or self._fault, timeout=max(0.0, ends - monotonic())
            )

    def _send_now(self, data: bytes) -> int:
        """As much as the socket takes without waiting."""
        try:
            return self._link.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]  # stays in front until it is written: order is kept
            try:
                self._link.sendall(data)
            except OSError as fault:
                with self._changed:
                    self._fault = fault
                    self._changed.notify_all()
                return
            with self._changed:
                self._waiting.popleft()
                self._num_bytes -= len(data)
                self._changed.notify_all()
