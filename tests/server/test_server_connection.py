"""Real connections: clients that leave, clients that dawdle, and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from live_server import Live, live, post
from server_app import chat, completion, make_folder

from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.kernels import capture
from cutaway.server.entry.connection import ConnectionNumbers
from cutaway.server.run import listening
from cutaway.server.server_config import MAX_HEADER_BYTES, ServerConfig
from cutaway.service.local import LocalService

# Longer than what a busy machine takes to leave in the midst of it.
LONG: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def run(folder: Path, body: Callable[[Live], Awaitable[Any]], **settings: Any) -> Any:
    async def inside() -> Any:
        async with asyncio.timeout(300), live(folder, **settings) as server:
            return await body(server)

    return asyncio.run(inside())


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection the hard way, as a process that dies does."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_what_is_written_is_sent_at_once() -> None:
    """Not held back until the client has told that it got what came before."""
    with listening(ServerConfig(port=0)) as listener:
        with socket.create_connection(listener.getsockname()):
            connection, _ = listener.accept()
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(sys.platform != "linux", reason="bounds what Linux takes of what is not sent")
def test_streams_that_nobody_reads_give_their_places_to_a_newcomer(tmp_path: Path) -> None:
    """The system would take 4 MB of each, which is all of them."""
    folder = make_folder(tmp_path / "tiny", max_position_embeddings=5_000)
    service = LocalService(
        f"random:{folder / 'config.json'}", dtype="float32", cache_tokens=12_000, max_sequences=2
    )
    unread = post(TEXT, dict(completion(stream=True, max_tokens=4_000, ignore_eos=True)))

    async def body(server: Live) -> None:
        with socket.socket() as one, socket.socket() as other:
            for count, client in ((1, one), (2, other)):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", server.port))
                client.sendall(unread)
                await server.until_running(count)
            reader, writer = await server.connect()
            writer.write(post(TEXT, dict(completion(max_tokens=4))))
            assert (await reader.readline()).split()[1] == b"200"
            assert server.app.num_open >= 2, "both streams go on when they are read"

    run(folder, body, service=service)


@pytest.mark.parametrize("is_hard", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_h03_when_the_client_goes_amid_an_answer_all_of_it_is_freed(
    long_folder: Path, path: str, stream: bool, is_hard: bool
) -> None:
    make = chat if path == CHAT else completion

    async def body(server: Live) -> None:
        reader, writer = await server.connect()
        writer.write(post(path, {**make(**LONG), "stream": stream, "n": 2}))
        await server.until_running(2)
        if stream:
            await reader.readuntil(b"data: ")
        if is_hard:
            reset(writer)
        else:
            writer.close()
        await server.until_idle()
        assert b'why="client"' in server.context.metrics.text(None)
        assert b"request_success_total{" not in server.context.metrics.text(None)

    run(long_folder, body)


def test_h03_clients_that_wait_in_the_queue_leave_no_trace(long_folder: Path) -> None:
    async def body(server: Live) -> None:
        prompts = [f"prompt {number}" for number in range(40)]
        _, writer = await server.connect()
        writer.write(post(TEXT, completion(prompts, n=3, **LONG)))
        await server.until_running(10)
        writer.close()
        await server.until_idle()

    run(long_folder, body)


@pytest.mark.parametrize("seed", range(4))
def test_h03_clients_cut_at_random_points_leave_no_trace(folder: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def one(server: Live) -> None:
        make, path = chance.choice([(chat, CHAT), (completion, TEXT)])
        fields = {"max_tokens": 60, "ignore_eos": True, "n": 2}
        data = post(path, {**make(**fields), "stream": chance.random() < 0.5})
        cut, num_read = chance.randrange(len(data) + 1), chance.randrange(400)
        reader, writer = await server.connect()
        if chance.random() < 0.4:
            writer.write(data[:cut])
        else:
            writer.write(data)
            await reader.read(1 + num_read)
        if chance.random() < 0.5:
            reset(writer)
        else:
            writer.close()

    async def body(server: Live) -> None:
        await asyncio.gather(*(one(server) for _ in range(15)))
        await server.until_idle()
        assert len(server.context.tokenizer.encode("after")) == 5
        reader, writer = await server.connect()
        writer.write(post(CHAT, chat()))
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
        await server.until_idle()

    run(folder, body)


@pytest.mark.skipif(not capture.is_available(), reason="torch alone sums in another order")
def test_a_client_that_leaves_does_not_change_the_others_answers(long_folder: Path) -> None:
    asked = completion("a neighbour", max_tokens=60, ignore_eos=True, logprobs=2, seed=3)

    async def answer(server: Live) -> bytes:
        reader, writer = await server.connect()
        writer.write(post(TEXT, {**asked, "temperature": 1}))
        await reader.readuntil(b"\r\n\r\n")
        text = await reader.readuntil(b'"usage"')
        writer.close()
        return text[text.index(b'"choices"') :]

    async def body(server: Live) -> tuple[bytes, bytes]:
        alone = await answer(server)
        neighbour = asyncio.create_task(answer(server))
        for _ in range(10):
            _, writer = await server.connect()
            writer.write(post(CHAT, chat(stream=True, **LONG)))
            await server.until_running()
            reset(writer)
        return alone, await neighbour

    alone, beside = run(long_folder, body, dtype="auto")
    assert alone == beside


@pytest.mark.parametrize("sent", [b"", b"POST ", b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(folder: Path, sent: bytes) -> None:
    async def body(server: Live) -> bytes:
        reader, writer = await server.connect()
        writer.write(sent)
        return await reader.read()

    said = run(folder, body, header_seconds=0.05)
    assert said.startswith(b"HTTP/1.1 408 ") and b'{"error":' in said


def test_the_second_head_of_a_connection_has_its_deadline_too(folder: Path) -> None:
    async def body(server: Live) -> bytes:
        reader, writer = await server.connect()
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b'{"status":"ok"}')
        writer.write(b"GET /hea")
        return await reader.read()

    assert run(folder, body, header_seconds=1).startswith(b"HTTP/1.1 408 ")


def test_a_head_without_end_is_cut_off(folder: Path) -> None:
    async def body(server: Live) -> bytes:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"y" * (MAX_HEADER_BYTES + 1))
        return await reader.readuntil(b"}}")

    assert run(folder, body).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        b"Content-Length: 3\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_are_refused_and_the_server_stays(folder: Path, sent: bytes) -> None:
    async def body(server: Live) -> tuple[bytes, bytes]:
        reader, writer = await server.connect()
        writer.write(sent)
        said = await reader.read()
        again, other = await server.connect()
        other.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        healthy = await again.readuntil(b"\r\n")
        other.close()
        return said, healthy

    said, healthy = run(folder, body)
    assert said.startswith(b"HTTP/1.1 400 ") and b'{"error":' in said
    assert healthy.startswith(b"HTTP/1.1 200 ")


def test_a_chunk_that_lies_about_its_size_is_refused(folder: Path) -> None:
    async def body(server: Live) -> bytes:
        reader, writer = await server.connect()
        writer.write(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n{}\r\n"
        )
        return await reader.read()

    assert run(folder, body).startswith(b"HTTP/1.1 400 ")


def test_a_body_that_says_it_is_too_large_is_refused_unread(folder: Path) -> None:
    async def body(server: Live) -> bytes:
        reader, writer = await server.connect()
        writer.write(post("/tokenize", {}, length=10**12))
        return await reader.read()

    assert run(folder, body).startswith(b"HTTP/1.1 413 ")


def test_a_second_request_before_the_first_is_answered_ends_the_connection(
    long_folder: Path,
) -> None:
    async def body(server: Live) -> None:
        reader, writer = await server.connect()
        writer.write(post(CHAT, chat(stream=True, **LONG)))
        await reader.readuntil(b"data: ")
        writer.write(post(CHAT, chat(stream=True, **LONG)))
        said = await reader.read()
        assert b"[DONE]" not in said, "it ended before its end"
        await server.until_idle()

    run(long_folder, body)


def test_a_silent_stream_says_that_it_lives(folder: Path) -> None:
    async def body(server: Live) -> bytes:
        held = asyncio.Event()
        follow = server.context.service.follow

        async def slow(request: Any) -> Any:
            await held.wait()
            async for delta in follow(request):
                yield delta

        server.context.service.follow = slow  # type: ignore[method-assign]
        reader, writer = await server.connect()
        writer.write(post(CHAT, chat(stream=True)))
        said = await reader.readuntil(b": keep-alive\n\n")
        held.set()
        said += await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()
        return said

    said = run(folder, body, keep_alive_seconds=0.02)
    assert said.startswith(b"HTTP/1.1 200 ") and b'"role":"assistant"' in said


def test_one_connection_carries_several_requests(folder: Path) -> None:
    async def body(server: Live) -> int:
        reader, writer = await server.connect()
        for _ in range(3):
            writer.write(post("/tokenize", {"prompt": "hello"}))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()
        return len(head)

    assert run(folder, body) > 0


def test_an_idle_connection_outlives_the_pools_that_keep_it(folder: Path) -> None:
    """peonist-ai/halogen-flash-server#25, NVIDIA-NeMo/Gym#1555, llm-d/llm-d-benchmark#1675."""

    async def body(server: Live) -> float:
        reader, writer = await server.connect()
        writer.write(post("/tokenize", {"prompt": "hello"}))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        (connection,) = server.connections.alive
        while connection.timeout_keep_alive_task is None:
            await asyncio.sleep(0)
        return connection.timeout_keep_alive_task.when() - asyncio.get_running_loop().time()

    assert run(folder, body) > 90  # seconds that Go's pools keep one


def test_many_streams_run_at_once(folder: Path) -> None:
    async def one(server: Live, number: int) -> bytes:
        reader, writer = await server.connect()
        writer.write(post(CHAT, chat(f"question {number}", stream=True, max_tokens=60)))
        said = await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()
        return said

    async def body(server: Live) -> tuple[list[bytes], int]:
        tasks = [asyncio.create_task(one(server, number)) for number in range(100)]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, (await server.context.service.stats()).running)
            await asyncio.sleep(0)
        said = [await task for task in tasks]
        await server.until_idle()
        return said, most

    said, most = run(folder, body)
    assert all(each.startswith(b"HTTP/1.1 200 ") for each in said) and most > 8


def test_connections_have_the_least_numbers_that_are_free() -> None:
    numbers = ConnectionNumbers()
    assert [numbers.take() for _ in range(3)] == [1, 2, 3]
    numbers.give(3)
    numbers.give(1)
    assert [numbers.take() for _ in range(3)] == [1, 3, 4]


def test_where_anybody_may_ask_each_connection_has_its_share(folder: Path) -> None:
    async def body() -> list[str]:
        async with live(folder) as server:
            seen: list[str] = []
            honest = server.context.service.follow

            def follow(request: Request) -> AsyncGenerator[Delta]:
                seen.append(request.sharer)
                assert request.owner == "" and request.cache_salt == b""
                return honest(request)

            server.context.service.follow = follow  # type: ignore[method-assign]
            for _ in range(2):
                reader, writer = await server.connect()
                for _ in range(2):
                    writer.write(post(TEXT, dict(completion(max_tokens=1))))
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0]))
            return seen

    seen = asyncio.run(body())
    assert seen == [f"connection {number}" for number in (1, 1, 2, 2)]
