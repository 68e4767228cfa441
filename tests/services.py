"""Services over a tiny random model, in this process and in one of their own, for tests."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import tiny
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.service.process import ProcessService
from cutaway.service.service import Service

T = TypeVar("T")
SETTINGS = {"dtype": "float64", "cache_tokens": 2048, "page_size": 8}
GOLDEN = tuple(range(20, 40))

# Put in the way of the engine's process alone: it reads PYTHONPATH. One token of a prompt says
# what goes wrong.
FAULTS = """
import os
import ctypes
import time

from cutaway.host.pulse import PULSE
from cutaway.service import snapshot
from cutaway.engine.engine import Engine
from cutaway.engine.running import Running
from cutaway.kernels import capture

snapshot_of, num_operations = snapshot.snapshot_of, capture.num_operations
pings, NUM_PINGS = [], 9
HANG, RAISE, RAISE_WHEN_ADDED, END, STARVE, LONG, STAY = 11, 12, 13, 14, 15, 16, 17
add, step, take = Engine.add, Engine.step, Running.take

def is_asked(engine, fault):
    return any(fault in s.request.prompt_token_ids for s in engine.scheduler.running)

def broken_add(self, request, told=()):
    if RAISE_WHEN_ADDED in request.prompt_token_ids:
        raise ZeroDivisionError
    add(self, request, told)

def locked(library):
    # native code that waits for ever, and that no signal wakes
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def broken_snapshot(engine, owner):
    if owner == "native":
        locked(ctypes.CDLL(None))
    if owner == "native and alone":  # no other thread runs Python then
        locked(ctypes.PyDLL(None))
    return snapshot_of(engine, owner)

def counted_operations():  # asked for at each ping
    pings.append(None)
    return num_operations()

def broken_step(self):
    if is_asked(self, STARVE):
        return []
    deltas = step(self)
    if is_asked(self, LONG) and not pings[NUM_PINGS:]:
        while not pings[NUM_PINGS:]:
            PULSE.beat()
            time.sleep(0.01)
    while is_asked(self, HANG):
        time.sleep(0.01)  # as still as a lock, and no core is kept from others
    if is_asked(self, STAY):
        raise RuntimeError("a fault of a whole step")
    if is_asked(self, END):
        os._exit(3)
    return deltas

def broken_take(self, emitted):
    if RAISE in self.sequence.request.prompt_token_ids:
        raise RuntimeError("a fault that nobody foresaw")
    return take(self, emitted)

Engine.add, Engine.step, Running.take = broken_add, broken_step, broken_take
snapshot.snapshot_of, capture.num_operations = broken_snapshot, counted_operations
"""
HANG, RAISE, RAISE_WHEN_ADDED, END, STARVE, LONG, STAY = 11, 12, 13, 14, 15, 16, 17


def make_model(folder: Path, **changes: Any) -> str:
    """The name of a tiny model whose configuration is written there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.config(**changes)), encoding="utf-8")
    return f"random:{folder / 'config.json'}"


def make_faults(folder: Path) -> str:
    """A PYTHONPATH whose interpreters have the faults above."""
    (folder / "sitecustomize.py").write_text(FAULTS, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    return f"{folder}{os.pathsep}{before}" if before else str(folder)


@asynccontextmanager
async def running(model: str, **settings: Any) -> AsyncIterator[ProcessService]:
    """A service in a process of its own, closed at the end."""
    service = ProcessService(model, **{**SETTINGS, **settings})
    await service.start()
    try:
        yield service
    finally:
        await service.close()


def request(name: str, prompt: tuple[int, ...] = GOLDEN, **fields: Any) -> Request:
    """A greedy request of 12 tokens."""
    own = {key: fields.pop(key) for key in ("owner", "deadline", "cache_salt") if key in fields}
    params = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **fields}
    return Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(**params), **own)


async def heard(service: Service, asked: Request) -> list[Delta]:
    """All that is said about a request."""
    return [delta async for delta in service.follow(asked)]


async def token_ids(service: Service, asked: Request) -> list[int]:
    """The tokens of its one answer."""
    return [token_id for delta in await heard(service, asked) for token_id in delta.token_ids]


def run_apart(body: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in a thread of its own.

    In this one the loop of a browser may run: another test's, which stays open.
    """
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, body).result()


async def until(holds: Callable[[], bool]) -> None:
    """Look again and again whether something holds; minutes are for a machine that is busy."""
    async with asyncio.timeout(300):
        while not holds():
            await asyncio.sleep(0.005)


def held() -> dict[str, int]:
    """What this process has open: files and sockets, threads, and processes that it started.

    Other tests of the same process may have left some: compare with what was there before, and
    only for more. What is left to be collected goes first, or it would go in the midst of a test.
    """
    gc.collect()
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(children()),
    }


def children() -> list[str]:
    """Processes that any thread of this one started and that have not been waited for."""
    found: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            found += (thread / "children").read_text().split()
    return found


def more_than(before: dict[str, int]) -> dict[str, int]:
    """What of held() is more than it was."""
    return {kind: count for kind, count in held().items() if count > before[kind]}


def assert_no_more_than(before: dict[str, int]) -> None:
    """The same outside an event loop; the thread that waited for a process ends a moment later."""
    deadline = time.monotonic() + 300
    while more := more_than(before):
        assert time.monotonic() < deadline, f"{more} are more than {before}"
        time.sleep(0.005)
