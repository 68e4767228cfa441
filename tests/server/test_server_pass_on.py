"""Events that are there at once go out together, and each as soon as it comes otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from cutaway.server.entry.door import AsgiMessage, ClientGoneError, HttpCall
from cutaway.server.server_config import ServerConfig
from cutaway.server.streaming import EventStream, pass_on


class Client:
    """Takes what is written; may be slow, or go."""

    def __init__(self, *, waits: int = 0, goes_after: int = 1000) -> None:
        self.got: list[bytes] = []
        self._waits, self._goes_after = waits, goes_after

    async def write(self, body: bytes) -> None:
        for _ in range(self._waits):
            await asyncio.sleep(0)
        if len(self.got) == self._goes_after:
            raise ConnectionError
        self.got.append(body)


async def queued(queue: asyncio.Queue[bytes | Exception | None]) -> AsyncGenerator[bytes]:
    while (event := await queue.get()) is not None:
        if isinstance(event, Exception):
            raise event
        yield event


def test_what_waits_in_a_queue_goes_out_in_one_write() -> None:
    async def run() -> None:
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        client = Client(waits=3)
        passing = asyncio.create_task(pass_on(queued(queue), client.write))
        for burst in ((b"a",), (b"b", b"c", b"d"), (b"e",)):
            for event in burst:
                queue.put_nowait(event)
            for _ in range(12):
                await asyncio.sleep(0)
        queue.put_nowait(None)
        await passing
        assert client.got == [b"a", b"bcd", b"e"]

    asyncio.run(run())


def test_a_long_burst_is_cut_so_that_a_slow_client_holds_it() -> None:
    async def all_at_once() -> AsyncGenerator[bytes]:
        for _ in range(100):
            yield b"x"

    client = Client()
    asyncio.run(pass_on(all_at_once(), client.write))
    assert [len(each) for each in client.got] == [32, 32, 32, 4]


def test_what_came_before_a_fault_is_written_before_it_is_raised() -> None:
    async def run() -> None:
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        for event in (b"a", b"b", ValueError("bad")):
            queue.put_nowait(event)
        client = Client()
        with pytest.raises(ValueError, match="bad"):
            await pass_on(queued(queue), client.write)
        assert client.got == [b"ab"]

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["cancelled", "client gone", "fault while it waits"])
def test_the_generator_is_left_in_order(ends: str) -> None:
    """Its cleaning up runs, once, whatever happens while it waits or while something is written."""
    left: list[str] = []

    async def run() -> None:
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

        async def events() -> AsyncGenerator[bytes]:
            try:
                async with aclosing(queued(queue)) as each:
                    async for event in each:
                        yield event
            finally:
                await asyncio.sleep(0)
                left.append("left")

        client = Client(waits=2, goes_after=1 if ends == "client gone" else 1000)
        made = events()

        async def work() -> None:
            async with aclosing(made):
                await pass_on(made, client.write)

        task = asyncio.create_task(work())
        queue.put_nowait(b"a")
        for _ in range(8):
            await asyncio.sleep(0)
        if ends == "cancelled":
            task.cancel()
        elif ends == "client gone":
            queue.put_nowait(b"b")
        else:
            queue.put_nowait(ValueError("bad"))
        expected = {"cancelled": asyncio.CancelledError, "client gone": ConnectionError}
        with pytest.raises(expected.get(ends, ValueError)):
            await task
        assert client.got == [b"a"] and left == ["left"]

    asyncio.run(run())


def test_cancelled_in_the_midst_of_a_write_the_generator_hears_of_it() -> None:
    heard: list[type[BaseException]] = []

    async def run() -> None:
        async def events() -> AsyncGenerator[bytes]:
            yield b"a"
            try:
                await asyncio.sleep(3600)
            except BaseException as fault:
                heard.append(type(fault))
                raise

        async def never(body: bytes) -> None:
            await asyncio.sleep(3600)

        task = asyncio.create_task(pass_on(events(), never))
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert heard == [asyncio.CancelledError]


class SlowSocket:
    """Takes an answer's messages; from the second event on only when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.begun: list[bytes] = []
        self.got: list[bytes] = []

    async def send(self, message: AsgiMessage) -> None:
        body = message.get("body", b"")
        self.begun.append(body)
        if body == b"b":
            await self.let.wait()
        self.got.append(body)


def streamed(
    events: AsyncGenerator[bytes], socket: SlowSocket, config: ServerConfig
) -> asyncio.Task[None]:
    async def receive() -> AsgiMessage:
        return await asyncio.get_running_loop().create_future()

    scope = {"type": "http", "state": {"call": HttpCall(socket.send)}}
    return asyncio.create_task(EventStream(events, config=config)(scope, receive, socket.send))


async def letters() -> AsyncGenerator[bytes]:
    for letter in (b"a", b"b", b"c"):
        yield letter
        await asyncio.sleep(0)


def test_no_comment_stands_amid_an_event_that_waits_for_the_socket() -> None:
    async def run() -> None:
        socket = SlowSocket()
        config = ServerConfig(keep_alive_seconds=0.01, send_seconds=30)
        task = streamed(letters(), socket, config)
        await asyncio.sleep(0.1)
        assert socket.begun == [b"", b"a", b"b"], "a comment waits behind the event"
        socket.let.set()
        await task
        assert [each for each in socket.got if not each.startswith(b":")][:4] == [
            *(b"", b"a", b"b", b"c"),
        ]

    asyncio.run(run())


def test_an_event_that_nobody_takes_in_time_ends_the_stream() -> None:
    async def run() -> None:
        task = streamed(letters(), SlowSocket(), ServerConfig(send_seconds=0.05))
        with pytest.raises(ClientGoneError):
            await task

    asyncio.run(run())
