"""Answers that go out as they come, and answers that end when the client goes.

Server-sent events as a response: a status that waits for the first event, comments in silence,
and an end as soon as the connection is closed. Knows no API's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from starlette.responses import Response

from cutaway.server.entry.begun import Step, begin, go_on, throw
from cutaway.server.entry.door import AsgiMessage, ClientGoneError, Receive, Scope, Send, call_of
from cutaway.server.error_replies import encode_fault, fault_of
from cutaway.server.server_config import ServerConfig
from cutaway.server.watching import log

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_MOST_TOGETHER = 32  # events in a write
_COMMENT = b": keep-alive\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
)


def data(value: object) -> bytes:
    """One event that has data alone."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def name_event(name: str, value: object) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\n" + data(value)


_MARK = uuid4().hex  # stands for a text, and in no other place


class TextEvent:
    """An event of which a text alone changes: written once, and cut where the text stands.

    value: the event's for a text.
    """

    def __init__(self, value: Callable[[str], object]) -> None:
        self._before, self._behind = data(value(_MARK)).split(msgspec.json.encode(_MARK))

    def of(self, text: str) -> bytes:
        """The event with this text."""
        return b"%b%b%b" % (self._before, msgspec.json.encode(text), self._behind)


class EventStream(Response):
    """Events from a generator.

    An error before the first event is raised, so that it becomes an ordinary answer with its
    status; a later one is the last event. Nothing after it claims that the answer is complete.

    error_event: how the API writes an error amid events, given its JSON.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        *,
        config: ServerConfig,
        error_event: Callable[[bytes], bytes] = lambda body: b"data: " + body + b"\n\n",
    ) -> None:
        super().__init__()
        self._events = events
        self._config = config
        self._error_event = error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, until they end or the client goes."""
        # The framework looks at the head of an answer alone: what follows passes it by.
        out = _Out(send, call_of(scope).send_body, self._config.send_seconds)
        pings = _Pings(out, self._config.keep_alive_seconds)
        try:
            await until_gone(receive, self._write(scope, out))
        finally:
            await pings.end()

    async def _write(self, scope: Scope, out: _Out) -> None:
        try:
            async with aclosing(self._events) as events:
                await pass_on(events, out.begin_write)
        except ClientGoneError:
            raise
        except Exception as error:
            if not out.has_begun:
                raise
            fault = fault_of(error)
            if fault.status == 500:
                log.fault(error, request_id=call_of(scope).request_id)
            await out.write(self._error_event(encode_fault(fault, scope)))
        await out.end()


async def pass_on(
    events: AsyncGenerator[bytes], write: Callable[[bytes], Awaitable[None] | None]
) -> None:
    """Write all events, those together that are there at once: each write is a call of the system.

    So a server that is late catches up, and one that is not writes each event when it comes.

    write: gives what is still to be awaited, or None where all is written.
    """
    come: list[bytes] = []

    def write_come() -> Awaitable[None] | None:
        if not come:
            return None
        joined = b"".join(come)
        come.clear()
        return write(joined)

    while True:
        try:
            step, is_there, got = begin(events.__anext__())
        except StopAsyncIteration:
            break
        except Exception:
            if (rest := write_come()) is not None:
                await rest
            raise
        if not is_there:
            try:
                if (rest := write_come()) is not None:
                    await rest
            except BaseException:
                # To the generator it is as any end from outside: nobody listens.
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await throw(step, asyncio.CancelledError())
                raise
            try:
                got = await go_on(step, got)
            except StopAsyncIteration:
                break
        come.append(got)
        if len(come) == _MOST_TOGETHER and (rest := write_come()) is not None:
            await rest
    if (rest := write_come()) is not None:
        await rest


class _Out:
    """The way to the client; begins with the first bytes.

    send: takes the head.   send_body: what comes behind it.
    """

    def __init__(self, send: Send, send_body: Send, seconds: float) -> None:
        self._send, self._send_body = send, send_body
        self._seconds = seconds
        self._lock = asyncio.Lock()  # events and comments come from two tasks
        self.has_begun = False
        self.has_ended = False
        self.last = monotonic()

    async def write(self, body: bytes) -> None:
        """Send some bytes. Raises: ClientGoneError when nobody takes them."""
        async with self._lock:
            if not self.has_begun:
                head = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                await self._pass(self._send, head)
                self.has_begun = True
            await self._pass(self._send_body, _part(body))
            self.last = monotonic()

    def begin_write(self, body: bytes) -> Awaitable[None] | None:
        """write, of which almost all is done at once: what is left to be awaited, then None.

        A token passes here: each coroutine and lock less spares it half a microsecond.
        Raises: ClientGoneError.
        """
        if self._lock.locked() or not self.has_begun:
            return self.write(body)
        step, is_passed, awaited = _begin(self._send_body, _part(body))
        self.last = monotonic()
        return None if is_passed else self._end_write(step, awaited)

    async def _end_write(self, step: Step, awaited: Any) -> None:
        async with self._lock:
            await self._wait(step, awaited)
            self.last = monotonic()

    async def end(self) -> None:
        """Say that nothing more comes; 204 where nothing came at all."""
        async with self._lock:
            self.has_ended = True
            if not self.has_begun:
                await self._pass(self._send, {"type": "http.response.start", "status": 204})
            part = {"type": "http.response.body", "body": b"", "more_body": False}
            await self._pass(self._send_body, part)

    async def _pass(self, send: Send, message: AsgiMessage) -> None:
        step, is_passed, awaited = _begin(send, message)
        if not is_passed:  # almost all are at once, and need no clock
            await self._wait(step, awaited)

    async def _wait(self, step: Step, awaited: Any) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await go_on(step, awaited)
        except (TimeoutError, OSError):
            raise ClientGoneError from None


def _part(body: bytes) -> AsgiMessage:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _begin(send: Send, message: AsgiMessage) -> tuple[Step, bool, Any]:
    try:
        return begin(send(message))
    except OSError:
        raise ClientGoneError from None


class _Pings:
    """A comment whenever nothing was sent for that long, from the start on, until it is ended.

    A timer and no task: with one for each of many streams they took twice as long to begin.
    """

    def __init__(self, out: _Out, seconds: float) -> None:
        self._out, self._seconds = out, seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)
        self._writing: asyncio.Task[None] | None = None

    def _look(self) -> None:
        rest = self._out.last + self._seconds - monotonic()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._look)
        else:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        if self._out.has_ended:
            return
        with suppress(ClientGoneError):
            await self._out.write(_COMMENT)
            self._timer = self._loop.call_later(self._seconds, self._look)

    async def end(self) -> None:
        """Write no more, and leave nothing half written. Raises: what a comment raised."""
        self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
            self._timer.cancel()


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled as soon as the client closes the connection.

    The work begins at once and in the task of who asks: a task of its own would wait a turn of the
    event loop, in which a crowd of streams is written.

    Raises: ClientGoneError then; whatever the work raises.
    """
    ours = asyncio.current_task()
    assert ours is not None, "a coroutine runs in a task"
    num_cancels = ours.cancelling()
    is_gone = is_over = False

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal is_gone
        if not is_over:
            is_gone = True
            ours.cancel()

    leaving = asyncio.create_task(_gone(receive))
    leaving.add_done_callback(leave)
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        if is_gone and ours.uncancel() <= num_cancels:
            raise ClientGoneError from None
        raise
    finally:
        is_over = True
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[AsgiMessage]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
