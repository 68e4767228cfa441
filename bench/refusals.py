"""What refusals for want of room cost the server: processor time of 10,000, by kind of connection.

The engine has all the answers that it takes, and stands still, so that all that is counted is the
server's own. Each refusal is asked for on a connection of its own, or all on one that is kept.

    python bench/refusals.py [--model random:config.json] [--refusals 10000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path

from cutaway.bench.server import start_server

MAX_SEQUENCES = 8
NUM_WAITING = 5 * MAX_SEQUENCES  # those that run, and four times as many that wait
AT_ONCE = 8  # refusals
Times = tuple[float, float]  # seconds of a core, the program's own and the system's


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--refusals", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    # Neither hung nor ended, however long it stands still.
    still = ["--hang-seconds", "3600", "--stall-seconds", "3600", "--request-seconds", "3600"]
    few = ["--max-sequences", str(MAX_SEQUENCES), "--cache-tokens", "4096"]
    with start_server(["--model", args.model, "--served-name", "m", *few, *still]) as server:
        port = int(server.url.rpartition(":")[2])
        asyncio.run(measure(port, server.pids, args.refusals, args.rounds))


async def measure(port: int, pids: dict[str, int], num_refusals: int, rounds: int) -> None:
    """Fill the engine, have it stand still, and print what refusals take."""
    os.kill(pids["engine"], signal.SIGSTOP)
    waiting = await fill(port)
    try:
        kinds: dict[str, Callable[[int, int], Awaitable[None]]] = {
            "a connection each": on_own,
            "connections that are kept": on_kept,
        }
        for name, ask in kinds.items():
            await ask(port, 200)
            taken = [await times_of(pids["server"], ask, port, num_refusals) for _ in range(rounds)]
            own, system = (statistics.median(each) for each in zip(*taken, strict=True))
            print(
                f"{num_refusals} refusals, {name}: {own:.2f} s of a core, and the system's "
                f"{system:.2f} s; {1e6 * (own + system) / num_refusals:.0f} us each"
            )
    finally:
        os.kill(pids["engine"], signal.SIGCONT)
        for writer in waiting:
            writer.close()


async def times_of(
    pid: int, ask: Callable[[int, int], Awaitable[None]], port: int, num_refusals: int
) -> Times:
    """What a process took while so many were refused."""
    own, system = used(pid)
    await ask(port, num_refusals)
    now = used(pid)
    return now[0] - own, now[1] - system


def used(pid: int) -> Times:
    """Seconds of a core that a process has taken so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(words[11]) / tick, int(words[12]) / tick


def request(*, is_last: bool) -> bytes:
    """A request for an answer, as bytes."""
    talk = [{"role": "user", "content": "word " * 10}]
    data = json.dumps({"model": "m", "messages": talk, "max_tokens": 60}).encode()
    close = "Connection: close\r\n" if is_last else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{close}"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def fill(port: int) -> list[asyncio.StreamWriter]:
    """Ask for twice as many answers as the engine takes; those that wait, once the rest is refused.

    It stands still, so none of them begins.
    """
    refused, waiting = asyncio.Semaphore(0), list[asyncio.StreamWriter]()

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        waiting.append(writer)
        writer.write(request(is_last=True))
        if told := await reader.read(-1):
            check(told)
            waiting.remove(writer)
            refused.release()

    asking = [asyncio.create_task(ask()) for _ in range(2 * NUM_WAITING)]
    for _ in range(NUM_WAITING):
        await refused.acquire()
    for each in asking:
        each.cancel()
    return waiting


async def on_own(port: int, num_refusals: int) -> None:
    """Ask for so many refusals, each on a connection of its own."""
    data = request(is_last=True)

    async def ask_some() -> None:
        for _ in range(num_refusals // AT_ONCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            check(await reader.read(-1))
            writer.close()

    await asyncio.gather(*(ask_some() for _ in range(AT_ONCE)))


async def on_kept(port: int, num_refusals: int) -> None:
    """Ask for so many refusals on connections that are kept as long as the server keeps them."""
    data = request(is_last=False)

    async def ask_some() -> None:
        writer: asyncio.StreamWriter | None = None
        for _ in range(num_refusals // AT_ONCE):
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            check(head)
            size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(size))
            if b"connection: close" in head.lower():
                writer.close()
                writer = None
        if writer is not None:
            writer.close()

    await asyncio.gather(*(ask_some() for _ in range(AT_ONCE)))


def check(told: bytes) -> None:
    """See that it is a refusal that says when to come back."""
    if b" 503 " not in told.partition(b"\r\n")[0] or b"\r\nretry-after: " not in told.lower():
        raise SystemExit(f"this is no refusal: {told!r}")


if __name__ == "__main__":
    main()
