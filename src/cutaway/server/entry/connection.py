"""One connection below ASGI: deadlines and sizes for what comes before a request is a request.

uvicorn has neither for headers: a client could hold a connection for ever by sending one byte now
and then, or fill memory with one endless header.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cutaway.host.read_sizes import read_in_pieces
from cutaway.server.error_replies import HttpError, encode_fault
from cutaway.server.server_config import MAX_HEADER_BYTES

# What a connection without a request stays open, longer than pools of clients and proxies keep one
# (Go 90 s, aiohttp 15 s): with uvicorn's own 5 s they ask on one that is just being closed, and no
# client repeats a POST by itself. The oldest are closed when descriptors run out.
IDLE_SECONDS = 120
_CLOSED_AT_ONCE = 16  # when descriptors run out: so many newcomers find room
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def protocol(*, header_seconds: float) -> type[Connection]:
    """The class of connections that give a request's head so many seconds."""

    class Timed(Connection):
        seconds = header_seconds
        numbers = ConnectionNumbers()
        alive: ClassVar[set[Connection]] = set()

    return Timed


class ConnectionNumbers:
    """Numbers of connections, the least that is free first.

    So there are never more than connections at once, and one after another has the same: where
    anybody may ask, these are the owners.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._most = 0

    def take(self) -> int:
        """A number for one connection."""
        if self._free:
            return heapq.heappop(self._free)
        self._most += 1
        return self._most

    def give(self, number: int) -> None:
        """The connection is closed."""
        heapq.heappush(self._free, number)


class Connection(HttpToolsProtocol):
    """uvicorn's connection with a deadline and a size for the head of a request.

    A second request that comes before the first is answered ends the connection: to wait with it,
    uvicorn would stop reading and so not see that the client has gone.
    """

    seconds = 10.0
    numbers = ConnectionNumbers()
    alive: ClassVar[set[Connection]] = set()
    _number = 0
    _idle_since = 0.0
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come; its first head is due."""
        super().connection_made(transport)
        read_in_pieces(transport)
        self.alive.add(self)
        self._number = self.numbers.take()
        self._idle_since = self.loop.time()
        self.app_state = {**self.app_state, "connection": f"connection {self._number}"}
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        self.alive.discard(self)
        self.numbers.give(self._number)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a head or of a body."""
        is_head = not self._is_answering
        if is_head:
            if self._deadline is None:
                self._expect_head()
            self._head_bytes += len(data)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif is_head and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"the headers are larger than {MAX_HEADER_BYTES} bytes.")

    def on_response_complete(self) -> None:
        """An answer has gone; the next head may come."""
        super().on_response_complete()
        self._idle_since = self.loop.time()

    @classmethod
    def make_room(cls) -> int:
        """Close the connections without a request that have been so longest. Returns how many."""
        idle = [each for each in cls.alive if not each._is_answering and not each._is_closing]
        idle.sort(key=lambda each: each._idle_since)
        for each in idle[:_CLOSED_AT_ONCE]:
            each.transport.abort()
        return len(idle[:_CLOSED_AT_ONCE])

    def on_message_begin(self) -> None:
        """The head of a request begins."""
        if self._is_answering:
            raise ValueError("a second request before the first is answered")
        super().on_message_begin()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or comes out of turn; amid an answer there is no place to say so."""
        if self._is_answering and self.cycle.response_started:
            self.transport.abort()
        else:
            again = "a second request came before the first was answered; send one at a time."
            self._refuse(400, again if self._is_answering else "this is no HTTP request.")

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    @property
    def _is_closing(self) -> bool:
        return self.transport.is_closing()

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(self.seconds, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        self._deadline = None
        self._refuse(408, f"the headers did not come within {self.seconds:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer below the application, and end the connection."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        body = encode_fault(HttpError(status=status, message=message))
        head = (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (status, _REASONS[status], len(body)) + body)
        self.transport.close()


def settings(connections: type[Connection]) -> dict[str, Any]:
    """How uvicorn is told to use them."""
    return {
        "http": connections,
        "ws": "none",
        "timeout_keep_alive": IDLE_SECONDS,
        "proxy_headers": False,  # nothing here rests on what a client says of its own address
    }
