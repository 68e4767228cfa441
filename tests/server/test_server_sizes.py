"""Bodies, heads and counts just over each limit: refused as declared, and nothing of it is kept."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
from collections.abc import Awaitable
from pathlib import Path

import pytest
from live_server import Live
from server_app import chat, completion
from test_server_load import closing, golden, resident, run

from cutaway.server.config import MAX_HEADER_BYTES, MAX_HEADERS, ServerConfig
from cutaway.service.process import ProcessService
from trials import ran, seed, trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

MAX_BODY = ServerConfig().max_body_bytes
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SMALL = json.dumps(completion()).encode()
MOST_GROWTH = 16 * 1024 * 1024


def sized(data: bytes, *, length: int | None = None, more: bytes = b"") -> bytes:
    return (
        HEAD
        + more
        + b"Content-Length: %d\r\n\r\n" % (len(data) if length is None else length)
        + data
    )


def chunked(*chunks: bytes, more: bytes = b"") -> bytes:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks)
    return HEAD + more + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


def cases(chance: random.Random) -> list[tuple[str, bytes, set[bytes]]]:
    """Name, bytes, and the statuses that are right."""
    over = chance.randint(1, 70_000)
    large = b'{"prompt": "' + b"x" * (MAX_BODY + over) + b'"}'
    too_many = [b" " * 65_536] * (MAX_BODY // 65_536 + 2)
    deep = b"[" * chance.randint(65, 100_000)
    many = {f"field{number}": 1 for number in range(chance.randint(100, 5000))}
    two = b"Content-Length: %d\r\n" % (len(SMALL) + chance.choice((0, 1, -1)))
    return [
        ("a body over the limit", sized(large), {b"413"}),
        ("a body that says so", sized(b"", length=MAX_BODY + over), {b"413"}),
        ("a body beyond all", sized(b"", length=10 ** chance.randint(12, 30)), {b"400", b"413"}),
        ("chunks over the limit", chunked(*too_many), {b"413"}),
        ("many small chunks", chunked(*[b" "] * 20_000, SMALL), {b"200", b"400", b"413"}),
        (
            "a chunk that lies",
            HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}",
            {b"400"},
        ),
        ("two lengths", sized(SMALL, more=two), {b"400"}),
        ("a length and chunks", chunked(SMALL, more=b"Content-Length: 5\r\n"), {b"400"}),
        ("depth", sized(b'{"prompt": ' + deep), {b"400"}),
        ("fields", sized(json.dumps({**completion(), **many}).encode()), {b"400"}),
        (
            "gzip",
            sized(gzip.compress(b" " * 5_000_000 + SMALL), more=b"Content-Encoding: gzip\r\n"),
            {b"400", b"415"},
        ),
        (
            "a header",
            sized(SMALL, more=b"X: " + b"y" * (MAX_HEADER_BYTES + over) + b"\r\n"),
            {b"431", b"400"},
        ),
        ("headers", sized(SMALL, more=b"X: y\r\n" * (MAX_HEADERS + 1)), {b"431", b"400"}),
        (
            "a path",
            HEAD.replace(b"completions", b"c" * (MAX_HEADER_BYTES + over)) + b"\r\n",
            {b"431", b"400", b"414"},
        ),
        ("a prompt", closing("/v1/chat/completions", chat("x" * 1_900_000)), {b"400", b"413"}),
        ("prompts", closing("/v1/completions", completion(["x"] * 10_000)), {b"400"}),
        ("stops", closing("/v1/completions", completion(stop=["x" * 257])), {b"400"}),
    ]


async def send(server: Live, data: bytes) -> tuple[bytes, int]:
    """The status, and how many bytes were sent before it came. A reset in their midst is one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answer: Awaitable[bytes] = asyncio.ensure_future(reader.readline())
    sent = 0
    try:
        for at in range(0, len(data), 65_536):
            if answer.done():  # type: ignore[attr-defined]
                break
            writer.write(data[at : at + 65_536])
            sent = at + 65_536
            await writer.drain()
        line = await asyncio.wait_for(answer, 60)
    except TimeoutError:
        line = b"HTTP/1.1 silence"
    except OSError:
        line = b"HTTP/1.1 reset"
    finally:
        writer.transport.abort()
    return [*line.split(b" "), b"none"][1], sent


def test_what_is_too_large_is_refused_and_leaves_no_memory_behind(folder: Path) -> None:
    chance, count, seen = random.Random(seed(14)), 0, set[bytes]()

    async def body(server: Live, service: ProcessService) -> int:
        nonlocal count
        expected = await golden(server)
        for _, data, _ in cases(chance):  # what is allocated once and kept
            await send(server, data)
        await server.until_idle()
        before = resident(service)
        most = 0
        while count < trials(17):
            for name, data, right in cases(chance):
                status, _ = await send(server, data)
                # A client that goes on sending may see the end of the connection, not the answer.
                assert status in right or (status == b"reset" and len(data) > 65_536), (
                    name,
                    status,
                )
                seen.add(status)
                count += 1
                del data
                most = max(most, resident(service) - before)
        await server.until_idle()
        assert await golden(server) == expected
        return most

    grown = run(folder, body)
    assert grown <= MOST_GROWTH, f"{grown / 2**20:.1f} MiB"
    assert {b"400", b"413"} <= seen
    ran(count, memory_grew_MiB=round(grown / 2**20, 1))
