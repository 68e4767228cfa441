"""Bodies, heads and counts just over each limit: refused as declared, and nothing of it is kept."""

from __future__ import annotations

import gzip
import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import chat, completion
from test_server_load import CHAT, closing
from test_server_program import served

from cutaway.bench.server import children
from cutaway.server.server_config import MAX_HEADER_BYTES, MAX_HEADERS, ServerConfig
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
        ("a prompt", closing(CHAT, chat("x" * 1_900_000)), {b"400", b"413"}),
        ("prompts", closing("/v1/completions", completion(["x"] * 10_000)), {b"400"}),
        ("stops", closing("/v1/completions", completion(stop=["x" * 257])), {b"400"}),
    ]


def send(port: int, data: bytes) -> tuple[bytes, int]:
    """The status, and how many bytes were sent before it came. A reset in their midst is one."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        try:
            while sent < len(data) and not select.select([client], [], [], 0)[0]:
                sent += client.send(data[sent : sent + 65_536])
            line = client.makefile("rb").readline()
        except TimeoutError:
            line = b"HTTP/1.1 silence"
        except OSError:
            line = b"HTTP/1.1 reset"
    return [*line.split(b" "), b"none"][1], sent


def golden(url: str) -> Any:
    """What one fixed request always gets."""
    body = completion("golden", logprobs=2)
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def resident(pids: Iterable[int]) -> int:
    """Bytes in memory of several processes."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in pids]
    return sum(int(each) for each in pages) * os.sysconf("SC_PAGE_SIZE")


def settled(pids: Iterable[int]) -> int:
    """Bytes in memory once what the last answer took is freed: it is told first."""
    last, now = 0, resident(pids)
    while now != last:
        time.sleep(0.05)
        last, now = now, resident(pids)
    return now


def test_what_is_too_large_is_refused_and_leaves_no_memory_behind(folder: Path) -> None:
    """The program itself, so that no memory is a client's."""
    chance, count, seen = random.Random(seed(14)), 0, set[bytes]()
    with served(folder) as (process, url, _):
        port = httpx2.URL(url).port
        assert port is not None
        pids = (process.pid, *children(process.pid))
        expected = golden(url)
        for _, data, _ in cases(chance):  # what is allocated once and kept
            send(port, data)
        before = settled(pids)
        most = 0
        while count < trials(17):
            for name, data, right in cases(chance):
                status, sent = send(port, data)
                # A client that goes on sending may see the end of the connection, not the answer.
                assert status in right or (status == b"reset" and sent > 65_536), (name, status)
                seen.add(status)
                count += 1
            most = max(most, settled(pids) - before)
        assert golden(url) == expected
    assert most <= MOST_GROWTH, f"{most / 2**20:.1f} MiB"
    assert {b"400", b"413"} <= seen
    ran(count, memory_grew_MiB=round(most / 2**20, 1))


def test_large_bodies_at_once_leave_no_memory_behind(folder: Path) -> None:
    """Blocks of their size come from the system: heaps keep 90 MiB of these 24."""
    with served(folder) as (process, url, _), ThreadPoolExecutor(12) as clients:
        port = httpx2.URL(url).port
        assert port is not None
        bodies = [closing(CHAT, chat("x" * (1_900_000 - 50_000 * each))) for each in range(24)]
        golden(url)
        send(port, bodies[0])
        before = settled([process.pid])
        statuses = {status for status, _ in clients.map(lambda each: send(port, each), bodies)}
        grown = settled([process.pid]) - before
    assert statuses == {b"400"}
    assert grown <= MOST_GROWTH, f"{grown / 2**20:.1f} MiB"
