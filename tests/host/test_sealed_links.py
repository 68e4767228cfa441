"""Links of hosts: who has no key learns nothing and costs little; nothing is changed on its way."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from cutaway.core.errors import ConfigError
from cutaway.host import sealed_link
from cutaway.host.link_key import LinkAddress, LinkKey, read_link_key
from cutaway.host.sealed_link import (
    LinkLostError,
    SealedLink,
    ask_for_link,
    grant_link,
    listen_for_links,
)

KEY = LinkKey("0123456789abcdef" * 2)
LOCAL = LinkAddress("127.0.0.1", 0)
Answer = Callable[[SealedLink], Awaitable[None]]


def run(body: Coroutine[None, None, None]) -> None:
    """A test to its end, and connections until they are closed."""

    async def whole() -> None:
        async with asyncio.timeout(60):
            await body
            await asyncio.sleep(0.01)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.01)

    asyncio.run(whole())


async def shut(writer: asyncio.StreamWriter) -> None:
    """Leave no socket to be collected later."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def echo(link: SealedLink) -> None:
    while True:
        link.send(await link.receive())


@asynccontextmanager
async def listening(
    key: LinkKey = KEY, answer: Answer = echo
) -> AsyncGenerator[tuple[LinkAddress, list[str]]]:
    """Where somebody listens, and why each connection ended there."""
    ended: list[str] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            link = await grant_link(reader, writer, key)
            try:
                await answer(link)
            finally:
                link.cut()
        except LinkLostError as error:
            ended.append(str(error))
        except asyncio.CancelledError:
            pass  # the loop ends; asyncio would log a connection's task that was cancelled
        finally:
            await shut(writer)

    with listen_for_links(LOCAL) as plain:
        server = await asyncio.start_server(meet, sock=plain)
        try:
            yield LinkAddress("127.0.0.1", plain.getsockname()[1]), ended
        finally:
            server.close()


@asynccontextmanager
async def between(
    target: LinkAddress, change: Callable[[int, bytes], bytes]
) -> AsyncGenerator[LinkAddress]:
    """Somebody on the way who passes on what `change` makes of the bytes from each place on."""

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, altered: bool
    ) -> None:
        place = 0
        while data := await reader.read(1 << 16):
            writer.write(change(place, data) if altered else data)
            place += len(data)
        await shut(writer)

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection(target.host, target.port)
        try:
            await asyncio.gather(
                pump(reader, out, True), pump(there, writer, False), return_exceptions=True
            )
        except asyncio.CancelledError:
            pass
        finally:
            out.close()
            writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield LinkAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.002)


def test_both_sides_hear_what_is_said_in_its_order() -> None:
    async def body() -> None:
        async with listening() as (address, _):
            link = await ask_for_link(address, KEY)
            said = [b"", b"a", bytes(range(256)) * 20000, b"end"]
            for each in said:
                link.send(each)
            assert [await link.receive() for _ in said] == said
            await link.close()

    run(body())


def test_another_key_is_told_to_both_and_gives_nothing_away() -> None:
    async def body() -> None:
        async with listening() as (address, ended):
            with pytest.raises(ConfigError, match=r"another key of links\. Give both hosts"):
                await ask_for_link(address, LinkKey("f" * 32))
            await until(lambda: ended)
            assert ended == ["it has another key"]

    run(body())


HOSTILE = [
    b"",
    b"\0" * 48,
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    bytes.fromhex("160301020001") + b"\1" * 600,  # the beginning of TLS
    b"cutaway link 1\r\n" + b"\0" * 64,
    b"cutaway link 9\r\n" + b"\0" * 64,
    b"cutaway link 1\r\n" + b"\0" * 10,
    *(random.Random(seed).randbytes(300) for seed in range(8)),
]


def test_hostile_bytes_end_alone_and_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_link, "HANDSHAKE_SECONDS", 0.3)
    reached: list[SealedLink] = []

    async def answer(link: SealedLink) -> None:
        reached.append(link)

    async def attack(address: LinkAddress, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        try:
            return await reader.read(4096)  # until it is cut
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def body() -> None:
        async with listening(answer=answer) as (address, ended):
            told = await asyncio.gather(*(attack(address, each) for each in HOSTILE))
            await until(lambda: len(ended) == len(HOSTILE))
            assert not reached, "none of them is heard"
            assert all(len(each) <= 49 for each in told), "a greeting and a no are all they get"
            link = await ask_for_link(address, KEY)
            await until(lambda: reached)
            link.cut()

    run(body())


def test_a_handshake_that_was_heard_opens_nothing_again() -> None:
    heard = bytearray()

    def keep(_: int, data: bytes) -> bytes:
        heard.extend(data)
        return data

    async def body() -> None:
        async with listening() as (address, ended), between(address, keep) as way:
            link = await ask_for_link(way, KEY)
            link.send(b"secret order")
            assert await link.receive() == b"secret order"
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(bytes(heard))
            await until(lambda: "it has another key" in ended)
            writer.close()
            link.cut()

    run(body())


GREETED = 80  # bytes of who asks before its first message


@pytest.mark.parametrize(
    "change",
    [
        lambda place, data: data[:-1] + bytes([data[-1] ^ 1]) if place >= GREETED else data,
        lambda place, data: data[:5] + b"X" + data[6:] if place >= GREETED else data,
        lambda place, data: data * 2 if place >= GREETED else data,  # said again
        lambda place, data: b"\xff\xff\xff\xff" + data if place >= GREETED else data,
    ],
    ids=["seal", "body", "again", "length"],
)
def test_what_was_changed_on_its_way_ends_the_link(change: Callable[[int, bytes], bytes]) -> None:
    got: list[bytes] = []

    async def answer(link: SealedLink) -> None:
        link.send(b"go on")
        while True:
            got.append(await link.receive())

    async def body() -> None:
        async with listening(answer=answer) as (address, ended), between(address, change) as way:
            link = await ask_for_link(way, KEY)
            assert await link.receive() == b"go on"  # or the first message comes with the proof
            link.send(b"an order")
            await until(lambda: ended)
            assert ended[0].startswith(("a message was changed", "a message of"))
            assert got in ([], [b"an order"]), "an order is heard once"
            link.cut()

    run(body())


def test_who_listens_must_prove_the_key_too() -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"cutaway link 1\r\n" + b"n" * 32)
        await reader.readexactly(GREETED)
        writer.write(b"y" + b"p" * 32)
        with suppress(OSError):
            await reader.read()
        await shut(writer)

    async def body() -> None:
        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        address = LinkAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ConfigError, match="does not prove that it has the key"):
            await ask_for_link(address, KEY)
        server.close()

    run(body())


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 40, "is no link of Cutaway"),
        (b"cutaway link 2\r\n" + b"n" * 32, "speaks another version of Cutaway's links"),
    ],
)
def test_what_is_no_member_is_told_apart(greeting: bytes, message: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with suppress(OSError):
            await reader.read()
        await shut(writer)

    async def body() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = LinkAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ConfigError, match=message):
            await ask_for_link(address, KEY)
        server.close()

    run(body())


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on tcp://127.0.0.1:{port}: Address"):
            listen_for_links(LinkAddress("127.0.0.1", port))


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1:70", "tcp://", "tcp://host", "tcp://host:x", "tcp://host:²", "tcp://a/b:1"],
)
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be tcp://HOST:PORT"):
        LinkAddress.parse(text)


def test_what_the_internet_reaches_is_no_address_of_links() -> None:
    with pytest.raises(ConfigError, match="which the whole internet can reach"):
        listen_for_links(LinkAddress("9.9.9.9", 0))


def test_addresses_are_written_as_they_are_read() -> None:
    for text in ("tcp://127.0.0.1:1", "tcp://[::1]:7070", "tcp://gpu-3:65535"):
        assert str(LinkAddress.parse(text)) == text


def test_a_key_is_asked_for_and_never_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="to listen needs a key, and neither --link-key-file nor"):
        read_link_key(None, where="to listen", environment={})
    file = tmp_path / "key"
    for text in ("short", "two words " * 8, "\x01" * 40):
        file.write_text(text, encoding="ascii")
        with pytest.raises(ConfigError, match="at least 32 printable") as caught:
            read_link_key(file, where="x", environment={})
        assert text.strip() not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read as the key of links: No such file"):
        read_link_key(tmp_path / "none", where="x", environment={})
    file.write_text("k" * 32 + "\n", encoding="ascii")
    other = read_link_key(None, where="x", environment={"CUTAWAY_LINK_KEY": "k" * 32})
    assert read_link_key(file, where="x", environment={}).page_secret == other.page_secret
    assert other.page_secret != LinkKey("l" * 32).page_secret
