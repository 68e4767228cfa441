"""The server with its engine's process under load: nothing leaks, nothing unforeseen is said.

bench/reliability.py runs them in full: rows 10, 11 and 24 of its plan.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from live_server import Live, live, post
from server_app import chat, completion

from cutaway.host.read_sizes import read_in_pieces
from cutaway.service.process import ProcessService
from trials import IN_FULL, ran, seed, trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

NUM_CUTS = trials(200)
OVERLOAD_SECONDS = trials(8)
NUM_KILLS = trials(2)
FREE_SECONDS = 1.0 if IN_FULL else 60.0  # what a shared machine of CI may take is no promise
MAX_GROWTH = 32 * 1024 * 1024
MAX_SEQUENCES = 8
CAPACITY = MAX_SEQUENCES * 5  # those that run, and four times as many that wait
HURRIED = 8  # one client in so many does not wait as long as it is told
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ALLOWED = {b"200", b"429", b"503"}


def run(folder: Path, body: Callable[[Live, ProcessService], Awaitable[Any]], **more: Any) -> Any:
    """What a coroutine function gives that has a server whose engine is a process."""
    engine = {"max_sequences": MAX_SEQUENCES, "cache_tokens": 4096, "page_size": 8, **more}
    engine["device"] = "cpu"  # on machines with a GPU as well: figures of both are of one kind
    service = ProcessService(f"random:{folder / 'config.json'}", dtype="float32", **engine)

    async def within() -> Any:
        async with live(folder, service=service) as server:
            return await body(server, service)

    return asyncio.run(within())


async def ask(server: Live, data: bytes) -> tuple[bytes, bytes]:
    """Status and everything after it, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    read_in_pieces(writer.transport)  # its reads, of 256 KiB else, would be in the server's memory
    try:
        writer.write(data)
        whole = await reader.read(-1)
    finally:
        writer.close()
    return whole.split(b" ", 2)[1], whole


def closing(path: str, body: Any) -> bytes:
    """The bytes of a request after whose answer the connection ends."""
    return post(path, body).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


async def golden(server: Live) -> Any:
    """What one fixed request always gets."""
    status, whole = await ask(server, closing(TEXT, completion("golden", logprobs=2)))
    assert status == b"200", whole
    return json.loads(whole.partition(b"\r\n\r\n")[2])["choices"]


async def state(server: Live, service: ProcessService) -> dict[str, int]:
    """What must be as before once nobody asks any more."""
    stats = await service.stats()
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "waiting tokens": stats.waiting_tokens,
        "pages": stats.pages_used,
        "requests": server.app.num_open,
        "tasks": len(asyncio.all_tasks()),
        "files": len(os.listdir("/proc/self/fd")),
        "engine's files": len(os.listdir(f"/proc/{service.pid}/fd")),
    }


async def at_rest(server: Live, service: ProcessService) -> dict[str, int]:
    """The state before anything was asked, without what earlier tests left to be collected.

    It would be closed in the midst of the test, and nothing would be as before any more.
    """
    gc.collect()
    return await state(server, service)


async def until_as_before(server: Live, service: ProcessService, before: dict[str, int]) -> float:
    """Seconds until nothing is more than before. Fails with what is."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    now = await state(server, service)
    while more := {name: count for name, count in now.items() if count > before[name]}:
        late = loop.time() - began > FREE_SECONDS
        assert not late, f"{more} are more than {[before[name] for name in more]}"
        await asyncio.sleep(0.01)
        now = await state(server, service)
    return loop.time() - began


def resident(service: ProcessService) -> tuple[int, int]:
    """Bytes in memory of the server's process, which is the clients' too, and of the engine's."""
    gc.collect()
    pages = [Path(f"/proc/{each}/statm").read_text().split()[1] for each in ("self", service.pid)]
    server, engine = (int(each) * os.sysconf("SC_PAGE_SIZE") for each in pages)
    return server, engine


def any_request(chance: random.Random) -> bytes:
    """A request as people send them: short, long, streamed or not, one choice or several."""
    fields = {
        "max_tokens": chance.choice((1, 4, 16, 60)),
        "stream": chance.random() < 0.5,
        "n": chance.choice((1, 1, 1, 2)),
        "ignore_eos": True,
    }
    text = "word " * chance.randint(1, 20)
    if chance.random() < 0.5:
        return closing(CHAT, chat(text, **fields))
    return closing(TEXT, completion(text, logprobs=chance.choice((None, 2)), **fields))


def test_h03_disconnects_at_random_points_leave_nothing(folder: Path) -> None:
    chance = random.Random(seed(0))

    async def body(server: Live, service: ProcessService) -> tuple[float, bool]:
        expected = await golden(server)
        before = await at_rest(server, service)
        most = 0.0
        for _ in range(0, NUM_CUTS, 20):
            await asyncio.gather(*(leave_early(server, chance) for _ in range(20)))
            most = max(most, await until_as_before(server, service, before))
        return most, await golden(server) == expected

    seconds, is_same = run(folder, body)
    assert is_same
    ran(NUM_CUTS, all_free_after_seconds=round(seconds, 3))


@dataclass
class Soak:
    """What clients of an overload were told, and how long a refusal took.

    refusals: how many took so many milliseconds. In an hour they are a million: a list of them
    would be more memory than what the server may grow by.
    """

    statuses: Counter[bytes] = field(default_factory=Counter[bytes])
    refusals: Counter[int] = field(default_factory=Counter[int])
    tokens: int = 0
    seconds: float = 0.0  # until the last answer had ended

    async def client(self, server: Live, number: int, until: float) -> None:
        """Ask again and again; one in twenty leaves early, and one in twenty means ill.

        Who is refused waits as Retry-After says, as OpenAI's client does; one client in HURRIED
        asks again within a tenth of a second, whatever it is told.
        """
        chance, loop = random.Random(number), asyncio.get_running_loop()
        while loop.time() < until:
            kind = chance.random()
            if kind < 0.05:
                await leave_early(server, chance)
                continue
            data = any_request(chance)
            if kind < 0.1:
                data = closing(TEXT, {**completion(), **chance.choice(ILL_WILL)})
            began = loop.time()
            status, whole = await ask(server, data)
            self.statuses[status] += 1
            if 0.05 <= kind < 0.1:
                assert status in {b"400", *ALLOWED}, whole
                continue
            assert status in ALLOWED, whole
            if status == b"200":
                found = re.findall(rb'"completion_tokens":(\d+)', whole)
                self.tokens += int(found[-1]) if found else whole.count(b"data: ") - 1
            else:
                self.refusals[math.ceil(1000 * (loop.time() - began))] += 1
                told = re.search(rb"\r\nretry-after: (\d+)\r\n", whole)
                assert told, whole
                wait = int(told[1]) if number % HURRIED else chance.random() / 10
                await asyncio.sleep(max(0.0, min(wait, until - loop.time())))


ILL_WILL: tuple[dict[str, Any], ...] = (
    {"n": 10**9},
    {"prompt": [2**63]},
    {"temperature": 10**400},
    {"structured_outputs": {"regex": "("}},
    {"logit_bias": {str(number): -100 for number in range(320)}, "max_tokens": 3},
    {"stop_token_ids": [320]},
)


async def leave_early(server: Live, chance: random.Random) -> None:
    """Send a request or a part of it, read a little or nothing, and go."""
    data = any_request(chance)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    read_in_pieces(writer.transport)
    try:
        if chance.random() < 0.2:
            writer.write(data[: chance.randrange(len(data))])
            await writer.drain()
        else:
            writer.write(data)
            await reader.read(chance.randint(1, 2000))
    finally:
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()


Sample = tuple[float, int, int]  # seconds, and bytes of the server's process and of the engine's


def shown(samples: list[Sample]) -> str:
    """A few of the samples, so that a failure names who grew."""
    few = samples[:: max(1, len(samples) // 20)] + samples[-1:]
    lines = (
        f"{seconds:8.1f} s: server {server / 2**20:7.1f} MiB, engine {engine / 2**20:7.1f} MiB"
        for seconds, server, engine in few
    )
    return "\n".join(lines)


def slope(samples: list[Sample]) -> float:
    """Bytes a second that memory grows by, as a line through the samples says."""
    times = [seconds for seconds, *_ in samples]
    sizes = [server + engine for _, server, engine in samples]
    middle, mean = sum(times) / len(times), sum(sizes) / len(sizes)
    across = sum((t - middle) ** 2 for t in times)
    return sum((t - middle) * (s - mean) for t, s in zip(times, sizes, strict=True)) / across


def test_h11_overload_is_refused_and_leaves_nothing(folder: Path) -> None:
    """Twice the capacity: twice as many clients as answers that the server takes at once.

    Each asks again as soon as it is answered, or as Soak.client says where it is refused. Goodput
    is compared with as many clients as answers, memory with what it is once nothing new is
    allocated any more.
    """

    def now() -> float:
        return asyncio.get_running_loop().time()

    async def overload(server: Live, seconds: float, num_clients: int) -> Soak:
        soak, began = Soak(), now()
        until = began + seconds
        clients = (soak.client(server, number, until) for number in range(num_clients))
        await asyncio.gather(*clients)
        soak.seconds = now() - began
        return soak

    async def until_flat(server: Live, service: ProcessService) -> None:
        """Overload until neither process grows; who always does is not waited for."""
        before = resident(service)
        for _ in range(5):
            await overload(server, max(3, OVERLOAD_SECONDS / 40), 2 * CAPACITY)
            await server.until_idle()
            after = resident(service)
            if all(now < then + 2**20 for now, then in zip(after, before, strict=True)):
                return
            before = after

    async def body(server: Live, service: ProcessService) -> Any:
        expected = await golden(server)
        await overload(server, 3, 2 * CAPACITY)  # what is allocated or started once and kept
        # Each thread that compiles has a process of its own from its first grammar on.
        grammars = ({**completion(), "structured_outputs": {"regex": each}} for each in "abcdefgh")
        await asyncio.gather(*(ask(server, closing(TEXT, each)) for each in grammars))
        await server.until_idle()
        before = await at_rest(server, service)
        await until_flat(server, service)
        at_once = await overload(server, OVERLOAD_SECONDS / 10, CAPACITY)
        await until_as_before(server, service, before)
        began, samples = now(), list[Sample]()
        soaking = asyncio.create_task(overload(server, OVERLOAD_SECONDS, 2 * CAPACITY))
        while not soaking.done():
            samples.append((now() - began, *resident(service)))
            await asyncio.wait([soaking], timeout=max(2, OVERLOAD_SECONDS / 200))
        soak = await soaking
        seconds = await until_as_before(server, service, before)
        samples.append((now() - began, *resident(service)))
        is_same = await golden(server) == expected
        return soak, at_once, seconds, samples, is_same

    # What is recorded of recent answers has its bound, which it reaches ahead of the soak.
    whole = run(folder, body, ledger_bytes=2**20)
    soak, at_once, seconds, samples, is_same = whole
    said = {status.decode(): count for status, count in sorted(soak.statuses.items())}
    later = [each for each in samples if each[0] > min(600, OVERLOAD_SECONDS / 3)]
    an_hour = 3600 * slope(later) / sum(later[0][1:])
    growth = sum(samples[-1][1:]) - sum(samples[0][1:])
    goodput = soak.tokens / soak.seconds / (at_once.tokens / at_once.seconds)
    print(f"{OVERLOAD_SECONDS} s of overload: {said}; all as before after {seconds:.2f} s")
    print(f"goodput {goodput:.2f} of {at_once.tokens / at_once.seconds:.0f} tokens a second")
    print(shown(samples))
    refusal = sorted(soak.refusals.elements())[int(0.99 * soak.refusals.total())]
    assert is_same and growth < MAX_GROWTH
    assert soak.statuses[b"200"] and soak.refusals, "there was no overload"
    if IN_FULL:  # shorter than this, and beside other tests, chance has the last word
        assert goodput >= 0.95 and refusal < 100
        assert an_hour < 0.005 or OVERLOAD_SECONDS < 1200, f"{an_hour:.2%} an hour"
    ran(
        OVERLOAD_SECONDS,
        total_answers=soak.statuses.total(),
        memory_grew_MiB=round(growth / 2**20, 1),
        memory_grows_percent_an_hour=round(100 * an_hour, 2),
        refusal_p99_ms=refusal,
        goodput_lost_percent=round(100 * (1 - goodput), 1),
    )


def test_kills_of_the_engine_under_load_are_told_and_healed(long_folder: Path) -> None:
    # Longer than what a busy machine takes to end the engine in the midst of them.
    fields = {"max_tokens": 2000, "ignore_eos": True, "stream": True}

    async def stream(server: Live, number: int) -> tuple[bytes, bytes]:
        return await ask(server, closing(TEXT, completion(f"stream {number}", **fields)))

    async def kill(server: Live, service: ProcessService) -> float:
        streams = [asyncio.create_task(stream(server, number)) for number in range(8)]
        await server.until_running(8)
        assert service.pid is not None
        os.kill(service.pid, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(5 if IN_FULL else 300):
            ended = await asyncio.gather(*streams)
        for status, whole in ended:
            # A stream that had not begun has the error as its answer.
            assert status in (b"200", b"503"), whole
            assert b'"error":{' in whole and b"[DONE]" not in whole, whole
        told = loop.time() - began
        assert (await ask(server, READY))[0] == b"503", "it is not back so soon"
        return told

    async def is_back(server: Live) -> None:
        while (await ask(server, READY))[0] != b"200":
            await asyncio.sleep(0.05)

    async def body(server: Live, service: ProcessService) -> tuple[list[float], int]:
        expected = await golden(server)
        before = await at_rest(server, service)
        seconds: list[float] = []
        for _ in range(NUM_KILLS):
            seconds.append(await kill(server, service))
            await is_back(server)
            assert await golden(server) == expected
        await until_as_before(server, service, before)
        return seconds, (await service.stats()).restarts

    seconds, restarts = run(long_folder, body, cache_tokens=8 * 2048)
    assert restarts == NUM_KILLS
    ran(NUM_KILLS, streams_told_after_seconds=round(max(seconds), 3))


READY = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
METRICS = READY.replace(b"/ready", b"/metrics")


def test_100_streams_run_at_once_and_metrics_show_it(folder: Path) -> None:
    fields = {"max_tokens": 200, "ignore_eos": True, "stream": True}

    async def asked_at_once(server: Live, service: ProcessService) -> list[asyncio.Task[Any]]:
        """All streams, begun in one step: the engine stands still until it has them all."""
        data = [closing(TEXT, completion(f"stream {each}", **fields)) for each in range(100)]
        assert service.pid is not None
        os.kill(service.pid, signal.SIGSTOP)
        try:
            streams = [asyncio.create_task(ask(server, each)) for each in data]
            while len(service._calls.open) < 100:
                await asyncio.sleep(0.005)
        finally:
            os.kill(service.pid, signal.SIGCONT)
        return streams

    async def running(server: Live) -> int:
        _, whole = await ask(server, METRICS)
        assert b" 200 " in whole.partition(b"\r\n")[0], whole
        # Left out where the engine does not tell in time: its step may take longer here.
        found = re.search(rb"num_requests_running\{[^}]*\} (\d+)", whole)
        return int(found[1]) if found else 0

    async def body(server: Live, service: ProcessService) -> tuple[list[Any], int]:
        before = await at_rest(server, service)
        streams = await asked_at_once(server, service)
        most = 0
        while not all(each.done() for each in streams):
            most = max(most, await running(server))
        await until_as_before(server, service, before)
        return [await each for each in streams], most

    ended, most = run(folder, body, max_sequences=100, cache_tokens=100 * 256)
    assert all(status == b"200" and b"data: [DONE]" in whole for status, whole in ended)
    print(f"most at once: {most}")
    assert most == 100
