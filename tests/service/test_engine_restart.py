"""An engine that ends or hangs, whatever the reason, harms what runs then, and nothing after.

bench/reliability.py kills it more often in a row: row 24 of its plan.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import services
from cutaway.core.errors import CutawayError, EngineClosedError
from cutaway.core.output import Delta
from cutaway.service.bounds import ProcessConfig
from cutaway.service.process import ProcessService
from services import (
    END,
    HANG,
    LONG,
    RAISE,
    RAISE_WHEN_ADDED,
    STARVE,
    STAY,
    assert_no_more_than,
    heard,
    held,
    make_faults,
    make_model,
    more_than,
    request,
    token_ids,
    until,
)
from trials import ran, trials

# Longer than a busy machine keeps a step waiting that is about to come back.
STALL = 10
IMPATIENT = ProcessConfig(stall_seconds=STALL, restart_seconds=1)
SOON = ProcessConfig(hang_seconds=2)  # told soon, and started again long after the test
# An answer of that length outlasts what a busy machine takes to end the engine in its midst.
LENGTH, NUM_STREAMS = 4096, 8
# A new engine takes seconds of computing; what a kill leaves behind shows at the second one.
NUM_KILLS = trials(2)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return make_model(tmp_path / "model", max_position_embeddings=LENGTH)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process can be made to fail by a token of a prompt, and tells where it stood."""
    # On a busy machine it may not come to that at once.
    monkeypatch.setattr("cutaway.service.spawn._DUMP_SECONDS", 5.0)
    monkeypatch.setenv("PYTHONPATH", make_faults(tmp_path))


def running(model: str, **settings: Any) -> AbstractAsyncContextManager[ProcessService]:
    """A service with room for that many answers of that length."""
    return services.running(model, cache_tokens=NUM_STREAMS * LENGTH, **settings)


@asynccontextmanager
async def streaming(
    service: ProcessService, count: int = NUM_STREAMS
) -> AsyncIterator[list[asyncio.Task]]:
    """Long answers that have all begun."""
    begun: list[Delta] = []

    async def follow(name: str) -> None:
        async with aclosing(service.follow(request(name, max_tokens=LENGTH - 100))) as deltas:
            async for delta in deltas:
                begun.append(delta)

    tasks = [asyncio.create_task(follow(f"open{number}")) for number in range(count)]
    await until(lambda: len({delta.request_id for delta in begun}) == count)
    yield tasks
    await asyncio.gather(*tasks, return_exceptions=True)


async def kill(service: ProcessService, number: int = signal.SIGKILL) -> None:
    assert service.pid is not None
    os.kill(service.pid, number)


async def ended(tasks: list[asyncio.Task]) -> None:
    """All tasks have heard that the engine is gone; how soon is measured under load."""
    async with asyncio.timeout(300):
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in done} == {EngineClosedError}


async def golden(service: ProcessService) -> list[int]:
    return await token_ids(service, request("golden"))


async def back(service: ProcessService, restarts: int) -> None:
    await until(lambda: service.state == "ready")
    assert (await service.stats()).restarts == restarts


def test_streams_end_with_an_error_and_the_engine_comes_back(model: str) -> None:
    async def body() -> None:
        async with running(model) as service:
            before = await golden(service)
            for number in (1, 2):
                async with streaming(service) as tasks:
                    await kill(service)
                    await ended(tasks)
                assert service.state in ("failed", "starting")
                with pytest.raises(EngineClosedError, match="being started"):
                    await heard(service, request("too early"))
                with pytest.raises(EngineClosedError, match="being started"):
                    await service.stats()
                await back(service, number)
                assert await golden(service) == before

    asyncio.run(body())


@pytest.mark.slow
def test_kills_leave_no_file_task_thread_or_process(model: str) -> None:
    async def body() -> None:
        async with running(model) as service:
            before = await golden(service)
            left: list[dict[str, int]] = []
            num_tasks: list[int] = []
            for number in range(1, NUM_KILLS + 1):
                async with streaming(service) as tasks:
                    await kill(service)
                    await ended(tasks)
                await back(service, number)
                assert await golden(service) == before
                left.append(held())
                num_tasks.append(len(asyncio.all_tasks()))
                await until(lambda: not more_than(left[0]))
                await until(lambda: len(asyncio.all_tasks()) <= num_tasks[0])

    before = held()
    asyncio.run(body())
    assert_no_more_than(before)
    ran(NUM_KILLS)


@pytest.mark.usefixtures("faults")
def test_a_step_that_does_not_come_back_is_ended(
    model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with running(model, process=IMPATIENT) as service:
            before = await golden(service)
            tasks = [asyncio.create_task(heard(service, request("hang", (5, HANG))))]
            await until(lambda: service.silent_seconds > 0)
            tasks.append(asyncio.create_task(heard(service, request("behind"))))
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(f"did not move in {STALL} seconds" in str(each) for each in done)
            await back(service, 1)
            assert service.silent_seconds == 0
            assert await golden(service) == before

    asyncio.run(body())
    said = capfd.readouterr().err
    assert "in broken_step" in said  # where it hung
    assert "cutaway: the engine is back." in said


def test_a_process_that_is_stopped_counts_as_hung(model: str) -> None:
    async def body() -> None:
        async with running(model, process=IMPATIENT) as service:
            async with streaming(service, count=2) as tasks:
                await kill(service, signal.SIGSTOP)
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert all("did not move" in str(each) for each in done)
            await back(service, 1)
            assert len(await golden(service)) == 12

    asyncio.run(body())


def test_an_idle_engine_is_not_taken_for_a_hung_one(model: str) -> None:
    async def body() -> None:
        async with running(model, process=ProcessConfig(hang_seconds=0.4)) as service:
            seen: set[int] = set()

            def has_moved() -> bool:
                seen.add(service._progress)
                return len(seen) > 5

            await until(has_moved)
            assert (await service.stats()).restarts == 0 and service.state == "ready"

    asyncio.run(body())


def test_an_idle_engine_that_is_stopped_is_noticed_and_may_go_on(
    model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with running(model, process=SOON) as service:
            before = await golden(service)
            await kill(service, signal.SIGSTOP)
            waiting = [asyncio.create_task(service.snapshot("me"))]
            waiting += [asyncio.create_task(service.stats())]
            for told in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(told, EngineClosedError) and "does not move" in str(told)
            assert service.silent_seconds >= 2 and service.state == "ready"
            with pytest.raises(EngineClosedError, match="does not move"):
                await golden(service)
            await kill(service, signal.SIGCONT)
            await until(lambda: service.silent_seconds == 0)
            assert await golden(service) == before
            assert (await service.stats()).restarts == 0

    asyncio.run(body())
    said = capfd.readouterr().err
    assert "has not moved for 2 seconds: a signal or a debugger has stopped it" in said
    assert "the engine moves again, after" in said


@pytest.mark.usefixtures("faults")
@pytest.mark.parametrize(
    "where", [pytest.param("native", marks=pytest.mark.slow), "native and alone", "scheduler"]
)
def test_a_hang_is_told_whatever_the_engine_does(
    model: str, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> str:
        said = ""
        async with running(model, process=SOON) as service:
            before = await golden(service)
            if where == "scheduler":  # steps come back, and compute nothing
                asked = asyncio.create_task(heard(service, request("starve", (5, STARVE))))
                await until(lambda: service.silent_seconds >= 2)
                asked.cancel()
            else:
                with pytest.raises(EngineClosedError, match="does not move"):
                    await service.snapshot(where)
                while "in locked" not in said:
                    await asyncio.sleep(0.005)
                    said += capfd.readouterr().err
            await kill(service)
            await until(lambda: service.state != "ready")
            await back(service, 1)
            assert service.silent_seconds == 0 and await golden(service) == before
        return said + capfd.readouterr().err

    assert "has not moved for 2 seconds." in asyncio.run(body())


@pytest.mark.usefixtures("faults")
def test_a_long_step_that_moves_is_waited_for(model: str) -> None:
    async def body() -> None:
        own = ProcessConfig(hang_seconds=2, stall_seconds=3)  # nine looks of half a second
        async with running(model, process=own) as service:
            assert await token_ids(service, request("long", (5, LONG)))
            assert (await service.stats()).restarts == 0

    asyncio.run(body())


@pytest.mark.usefixtures("faults")
@pytest.mark.parametrize(("fault", "code"), [(STAY, 1), (END, 3)], ids=["raises", "ends"])
def test_a_fault_that_is_nobodys_own_is_visible_and_the_engine_comes_back(
    model: str, fault: int, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with running(model) as service:
            before = await golden(service)
            async with streaming(service, count=3) as tasks:
                tasks.append(asyncio.create_task(heard(service, request("fault", (5, fault)))))
                await ended(tasks)
            await back(service, 1)
            assert await golden(service) == before

    asyncio.run(body())
    said = capfd.readouterr().err
    assert f"(exit code {code})" in said
    assert ("broken_step" in said) == (fault == STAY)


@pytest.mark.usefixtures("faults")
def test_a_fault_in_the_work_for_one_answer_ends_it_alone(
    model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with running(model) as service:
            before = await golden(service)
            asked = [request(f"n{number}", (7, number), max_tokens=40) for number in range(3)]
            alone = [await token_ids(service, each) for each in asked]
            beside = [asyncio.create_task(token_ids(service, each)) for each in asked]
            with pytest.raises(CutawayError, match="a fault of Cutaway itself"):
                deltas = await heard(service, request("fault", (5, RAISE)))
                assert deltas[-1].error is not None
                raise deltas[-1].error
            assert await asyncio.gather(*beside) == alone
            stats = await service.stats()
            assert (stats.restarts, stats.running, stats.pages_used) == (0, 0, 0)
            assert await golden(service) == before

    asyncio.run(body())
    said = capfd.readouterr().err
    assert "RuntimeError" in said and "broken_take" in said
    assert "nobody foresaw" not in said, "a message may hold what a user wrote"


@pytest.mark.usefixtures("faults")
def test_a_request_that_raises_when_it_is_added_ends_alone(
    model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with running(model) as service:
            before = await golden(service)
            neighbour = asyncio.create_task(golden(service))
            with pytest.raises(CutawayError, match="a fault of Cutaway itself"):
                await heard(service, request("bad", (5, RAISE_WHEN_ADDED)))
            assert await neighbour == before
            assert (await service.stats()).restarts == 0

    asyncio.run(body())
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_an_engine_that_cannot_be_started_again_is_tried_until_it_can(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model" / "config.json"

    async def body() -> None:
        said = ""
        async with running(model, process=IMPATIENT) as service:
            before = await golden(service)
            file.rename(tmp_path / "away")
            await kill(service)
            await until(lambda: service.state != "ready")
            while "could not be started again" not in said:
                await asyncio.sleep(0.005)
                said += capfd.readouterr().err
            (tmp_path / "away").rename(file)
            await back(service, 1)
            assert await golden(service) == before

    asyncio.run(body())


def test_an_engine_is_given_up_after_so_many_starts_in_a_row(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        few = ProcessConfig(max_restarts=1)
        async with running(model, process=few) as service:
            gone = asyncio.create_task(service.wait_until_gone())
            await golden(service)
            await kill(service)
            await until(lambda: service.state != "ready")
            await back(service, 1)
            await golden(service)  # an answer: what was before counts no more
            (tmp_path / "model" / "config.json").rename(tmp_path / "away")
            await kill(service)
            async with asyncio.timeout(300):
                why = await gone
            assert "1 starts in a row came to nothing" in why and "max_restarts is 1" in why
            assert service.state == "failed"
            with pytest.raises(EngineClosedError):
                await golden(service)

    asyncio.run(body())
    assert capfd.readouterr().err.count("could not be started again") == 1


def test_an_engine_that_may_not_be_started_again_is_not(model: str) -> None:
    async def body() -> None:
        async with running(model, process=ProcessConfig(max_restarts=0)) as service:
            await golden(service)
            await kill(service)
            async with asyncio.timeout(300):
                assert "it has ended, and max_restarts is 0" in await service.wait_until_gone()

    asyncio.run(body())


HANGING = """
import sys, threading, types

def build_engine(*_, **__):
    threading.Event().wait()

build = types.ModuleType("cutaway.engine.build")
build.build_engine = build_engine

def others(name):  # what others import of it is never used
    if name.startswith("__"):
        raise AttributeError(name)
    return build_engine

build.__getattr__ = others
sys.modules[build.__name__] = build
"""


def test_a_process_that_hangs_while_it_loads_is_ended(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", make_faults(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(HANGING, encoding="utf-8")

    async def body(seconds: int) -> None:
        service = ProcessService(model, process=ProcessConfig(load_seconds=seconds))
        with pytest.raises(EngineClosedError, match=f"not loaded in load_seconds, {seconds}"):
            await service.start()

    before, said = held(), ""
    for seconds in (2, 8, 60):  # until it came to where it hangs
        if "in build_engine" not in said:
            asyncio.run(body(seconds))
            said = capfd.readouterr().err
    assert_no_more_than(before)
    assert "in build_engine" in said


def test_closing_in_the_middle_of_a_restart_ends_both(model: str) -> None:
    async def body() -> None:
        async with running(model) as service:
            await kill(service)
            await until(lambda: service.state == "starting")

    before = held()
    asyncio.run(body())
    assert_no_more_than(before)
