"""Answers that go out as they come, and answers that end when the client goes.

Server-sent events as a response: a status that waits for the first event, comments in silence,
and an end as soon as the connection is closed. Knows no API's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing, suppress
from time import monotonic
from types import coroutine
from typing import Any, TypeVar, cast
from uuid import uuid4

import msgspec
from starlette.responses import Response

from cutaway.server.entry.door import AsgiMessage, ClientGoneError, Receive, Scope, Send, call_of
from cutaway.server.error_replies import encode_fault, fault_of
from cutaway.server.server_config import ServerConfig
from cutaway.server.watching import log

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_MOST_TOGETHER = 32  # events in a write
_COMMENT = b": keep-alive\n\n"
_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}


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
        out = _Out(send, call_of(scope).pass_on, self._config.send_seconds)
        pinger = asyncio.create_task(_ping(out, self._config.keep_alive_seconds))
        try:
            await until_gone(receive, self._write(scope, out))
        finally:
            pinger.cancel()
            with suppress(asyncio.CancelledError):
                await pinger

    async def _write(self, scope: Scope, out: _Out) -> None:
        try:
            async with aclosing(self._events) as events:
                await pass_on(events, out.write)
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


_Step = Generator[Any, None, Any]  # of a generator: it yields what it waits for


async def pass_on(events: AsyncGenerator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
    """Write all events, those together that are there at once: each write is a call of the system.

    So a server that is late catches up, and one that is not writes each event when it comes.
    """
    come: list[bytes] = []

    async def write_come() -> None:
        if come:
            joined = b"".join(come)
            come.clear()
            await write(joined)

    while True:
        step = cast("_Step", events.__anext__())
        try:
            is_there, got = _begin(step)
        except StopAsyncIteration:
            break
        except Exception:
            await write_come()
            raise
        if not is_there:
            try:
                await write_come()
            except BaseException:
                # To the generator it is as any end from outside: nobody listens.
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await _throw(step, asyncio.CancelledError())
                raise
            try:
                got = await _go_on(step, got)
            except StopAsyncIteration:
                break
        come.append(got)
        if len(come) == _MOST_TOGETHER:
            await write_come()
    await write_come()


def _begin(step: _Step) -> tuple[bool, Any]:
    """Run a step of a generator until it has its value, or waits: whether it has, and for what."""
    try:
        return False, step.send(None)
    except StopIteration as done:
        return True, done.value


def _waiting(step: _Step, awaited: Any) -> _Step:
    """The value of a step that waits for something."""
    try:
        yield awaited
    except BaseException as fault:
        return (yield from _raising(step, fault))
    return (yield from step)


def _raising(step: _Step, fault: BaseException) -> _Step:
    """Raise what was raised here in a step that waits; its value if it bears it."""
    try:
        awaited = step.throw(fault)
    except StopIteration as done:
        value: Any = done.value
        return value
    return (yield from _waiting(step, awaited))


_go_on, _throw = coroutine(_waiting), coroutine(_raising)


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
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                head = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._pass(self._send, head)
                self.has_begun = True
            part = {"type": "http.response.body", "body": body, "more_body": True}
            await self._pass(self._send_body, part)
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
        step = cast("_Step", send(message))
        try:
            is_passed, awaited = _begin(step)
            if not is_passed:  # almost all are at once, and need no clock
                async with asyncio.timeout(self._seconds):
                    await _go_on(step, awaited)
        except (TimeoutError, OSError):
            raise ClientGoneError from None


async def _ping(out: _Out, seconds: float) -> None:
    """A comment whenever nothing was sent for that long, from the start on."""
    with suppress(ClientGoneError):
        while not out.has_ended:
            rest = out.last + seconds - monotonic()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await out.write(_COMMENT)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled as soon as the client closes the connection.

    Raises: ClientGoneError then; whatever the work raises.
    """
    doing = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGoneError
    finally:
        await _ended(doing, leaving)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[AsgiMessage]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
