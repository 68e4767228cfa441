"""Threads that read requests: owners take turns for them, and a flood leaves room for others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from cutaway.core.errors import OverloadedError
from cutaway.server.entry.owner import SHARER
from cutaway.server.worker import LARGE_BYTES, MAX_WAITING, NUM_THREADS, Worker


def crowd(body: Callable[[Worker, threading.Event], Awaitable[None]]) -> None:
    """Run a coroutine with a worker whose threads wait for a signal."""

    async def run() -> None:
        worker, go = Worker(), threading.Event()
        try:
            await body(worker, go)
        finally:
            go.set()
            worker.close()

    asyncio.run(run())


def ask(worker: Worker, owner: str, work: Callable[[], object]) -> asyncio.Task[object]:
    """Work in the name of an owner."""

    async def asked() -> object:
        SHARER.set(owner)
        return await worker.take_in(work)

    return asyncio.create_task(asked())


def test_a_flood_of_one_owner_delays_another_by_a_turn() -> None:
    async def body(worker: Worker, go: threading.Event) -> None:
        done: list[str] = []
        tasks = [ask(worker, "alice", go.wait) for _ in range(NUM_THREADS)]
        tasks += [ask(worker, "alice", lambda: done.append("alice")) for _ in range(100)]
        await asyncio.sleep(0)
        tasks.append(ask(worker, "bob", lambda: done.append("bob")))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks)
        assert len(done) == 101 and done.index("bob") <= 2 + NUM_THREADS

    crowd(body)


def test_a_flood_leaves_room_and_who_leaves_is_passed_over() -> None:
    async def body(worker: Worker, go: threading.Event) -> None:
        tasks = [ask(worker, "alice", go.wait) for _ in range(NUM_THREADS + MAX_WAITING)]
        await asyncio.sleep(0.01)
        refused = [task for task in tasks if task.done()]
        assert 40 < len(refused) < 60
        for task in refused:
            with pytest.raises(OverloadedError, match="wait to be read"):
                task.result()
        bob = ask(worker, "bob", lambda: "bob")
        for task in tasks[NUM_THREADS:200]:
            task.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await bob == "bob"
        await asyncio.gather(*tasks, return_exceptions=True)
        assert worker._turns._num_free == NUM_THREADS and not worker._turns._waiting
        assert worker._open.total == 0

    crowd(body)


def test_large_bodies_leave_a_thread_to_others_also_when_their_clients_have_gone() -> None:
    async def body(worker: Worker, go: threading.Event) -> None:
        begun: list[str] = []

        def read(data: bytes, name: str) -> str:
            begun.append(name)
            go.wait()
            return name

        async def large(owner: str) -> object:
            SHARER.set(owner)
            return await worker.take_in(read, bytes(LARGE_BYTES + 1), owner)

        tasks = [asyncio.create_task(large(f"owner {number}")) for number in range(8)]
        while not begun:
            await asyncio.sleep(0.001)
        assert await ask(worker, "bob", lambda: "bob") == "bob"
        for task in tasks:  # one after another would begin, if places were free before threads are
            task.cancel()
            await asyncio.sleep(0.001)
        assert await ask(worker, "bob", lambda: "bob") == "bob"
        assert begun == ["owner 0"] and worker._large._num_free == 0
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not worker._large._num_free:
            await asyncio.sleep(0.001)
        assert worker._turns._num_free == NUM_THREADS and worker._open.total == 0

    crowd(body)


def test_what_fails_for_a_client_that_has_gone_is_no_complaint_and_gives_its_place_back() -> None:
    async def body(worker: Worker, go: threading.Event) -> None:
        def fail() -> None:
            go.wait()
            raise ValueError

        asked = ask(worker, "alice", fail)
        while worker._turns._num_free == NUM_THREADS:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert worker._turns._num_free == NUM_THREADS - 1
        go.set()
        while worker._turns._num_free < NUM_THREADS:
            await asyncio.sleep(0.001)

    crowd(body)
