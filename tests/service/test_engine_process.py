"""The engine in a process of its own answers as the one in this process does, and ends cleanly."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import engines
import tiny
from cutaway.core.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineError,
    EngineClosedError,
    ModelNotFoundError,
    OverloadedError,
    ReplayError,
    RequestError,
)
from cutaway.core.looks import EventRequest
from cutaway.core.output import Delta
from cutaway.service import inbox as inboxes
from cutaway.service import message_service as module
from cutaway.service.bounds import ProcessConfig, TrafficConfig
from cutaway.service.local import LocalService
from cutaway.service.process import ProcessService
from cutaway.service.service import Service
from program import environment
from services import (
    GOLDEN,
    SETTINGS,
    assert_no_more_than,
    heard,
    held,
    make_model,
    request,
    running,
    token_ids,
    until,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("process"))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def service(model: str, loop: asyncio.Runner) -> Iterator[ProcessService]:
    """One process for all tests that leave it as it was."""
    made = ProcessService(model, **SETTINGS)
    loop.run(made.start())
    yield made
    loop.run(made.close())


async def is_idle(service: ProcessService) -> bool:
    """Nothing is left of any request, on either side."""
    stats = await service.stats()
    assert service._traffic is not None
    here = len(service._calls.open) + service._traffic.num_open + len(asyncio.all_tasks()) - 2
    return (here, stats.running, stats.waiting, stats.pages_used) == (0, 0, 0, 0)


async def essence(service: Service, requests: list[Any]) -> list[Any]:
    """What is said about each request, without how it was cut into deltas."""
    found: list[Any] = []
    for asked, deltas in zip(
        requests, await asyncio.gather(*(heard(service, each) for each in requests)), strict=True
    ):
        for choice in range(asked.params.n):
            own = [delta for delta in deltas if delta.choice == choice]
            last = own[-1]
            assert last.usage is not None and last.timings is not None
            found.append(
                (
                    [token_id for delta in own for token_id in delta.token_ids],
                    "".join(delta.text for delta in own),
                    [(s.token_id, s.rank) for delta in own for s in delta.logprobs],
                    len([s for delta in own for s in delta.prompt_logprobs]),
                    (last.finish_reason, last.stopped_by, last.usage.completion_tokens),
                )
            )
    return found


def test_both_services_say_the_same(service: ProcessService, model: str, loop: Any) -> None:
    async def local() -> tuple[list[Any], Any]:
        own = LocalService(model, **SETTINGS)
        await own.start()
        try:
            return await essence(own, engines.workload(5, count=8)), own.model
        finally:
            await own.close()

    said, card = loop.run(local())
    assert loop.run(essence(service, engines.workload(5, count=8))) == said
    assert service.model == card
    assert len(said) > 8  # some asked for several answers


def test_events_and_states_come_over_the_link(service: ProcessService, loop: Any) -> None:
    async def body() -> None:
        said = await token_ids(service, request("told", max_tokens=40))
        events: list[Any] = []
        async with aclosing(service.listen(listened("told"))) as batches:
            async for batch in batches:
                events += [json.loads(data) for _, data in batch.events]
        assert [e["id"] for e in events if e["type"] == "token"] == said
        assert events[0]["trace_id"] == "told" and events[-1]["type"] == "end"
        with pytest.raises(ReplayError, match="no record of answer"):
            await anext(service.listen(listened("told", owner="someone else")))
        held = json.loads(await service.snapshot(""))
        assert held["running"] == [] and held["steps"] == (await service.stats()).steps
        assert await is_idle(service) and not service._calls.feeds

    loop.run(body())


def test_who_listens_hears_that_the_engine_ended(model: str, loop: Any) -> None:
    async def body() -> None:
        async with running(model) as own:
            following = own.follow(request("r", max_tokens=200))
            await anext(following)
            feed = own.listen(listened("r"))
            assert (await anext(feed)).events
            assert own.pid is not None
            os.kill(own.pid, signal.SIGKILL)
            with pytest.raises(EngineClosedError):
                while True:
                    await anext(feed)
            assert not own._calls.feeds
            await following.aclose()

    loop.run(body())


def listened(name: str, *, owner: str = "") -> EventRequest:
    return EventRequest(request_id=name, choice=0, owner=owner)


def test_leaving_ends_the_answer_and_frees_its_pages(service: ProcessService, loop: Any) -> None:
    async def body() -> None:
        async with aclosing(service.follow(request("left", max_tokens=200))) as deltas:
            async for _ in deltas:
                break
            assert (await service.stats()).pages_used > 0
        assert await is_idle(service)

    loop.run(body())


def test_200_disconnects_at_random_points_leave_nothing(service: ProcessService, loop: Any) -> None:
    chance = random.Random(200)

    async def leave_after(number: int, num_deltas: int) -> None:
        asked = request(
            f"gone{number}",
            tuple(chance.randrange(256) for _ in range(chance.randint(1, 40))),
            max_tokens=100,
            n=chance.choice([1, 1, 1, 2]),
            owner=chance.choice(["a", "b"]),
        )
        async with aclosing(service.follow(asked)) as deltas:
            async for _ in deltas:
                num_deltas -= 1
                if num_deltas <= 0:
                    return

    async def body() -> None:
        tasks: list[asyncio.Task[None]] = []
        for number in range(200):
            tasks.append(asyncio.create_task(leave_after(number, chance.randint(1, 8))))
            await asyncio.sleep(0)  # it asks
            for _ in range(chance.choice([0, 0, 0, 1, 3])):
                await service.stats()  # a turn of the engine
            if chance.random() < 0.5:
                tasks[-1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [each for each in done if isinstance(each, asyncio.CancelledError)]
        assert {each for each in done if each not in cancelled} == {None}
        assert len(cancelled) > 20
        assert await is_idle(service)

    loop.run(body())


def test_what_can_never_be_computed_is_refused(service: ProcessService, loop: Any) -> None:
    with pytest.raises(RequestError, match="prompt holds the token id 320"):
        loop.run(heard(service, request("r", (320,))))
    with pytest.raises(ContextLengthError):
        loop.run(heard(service, request("r", max_tokens=10**6)))
    assert loop.run(is_idle(service))


def test_what_the_engine_refuses_arrives_as_it_was_raised(
    service: ProcessService, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "check_request", lambda *_: None)
    with pytest.raises(RequestError, match="prompt holds the token id 2147483648") as fault:
        loop.run(heard(service, request("r", (2**31,))))
    assert fault.value.param == "prompt"
    assert loop.run(is_idle(service))


def test_a_deadline_holds_in_the_other_process(service: ProcessService, loop: Any) -> None:
    last = loop.run(heard(service, request("late", max_tokens=200, deadline=1e-9)))[-1]
    assert last.finish_reason == "abort"
    assert isinstance(last.error, DeadlineError)
    assert loop.run(is_idle(service))


def test_one_choice_can_be_ended_and_the_others_go_on(service: ProcessService, loop: Any) -> None:
    async def body() -> list[Delta]:
        deltas: list[Delta] = []
        async for delta in service.follow(request("r", n=3, max_tokens=100, seed=1)):
            if delta.choice in (0, 2) and not any(d.choice == delta.choice for d in deltas):
                await service.end("r", delta.choice)
            deltas.append(delta)
        return deltas

    deltas = loop.run(body())
    last = {delta.choice: delta for delta in deltas if delta.finish_reason}
    assert [last[choice].finish_reason for choice in range(3)] == ["abort", "length", "abort"]
    assert last[0].error is None and last[0].usage is not None
    said = sum(len(delta.token_ids) for delta in deltas if delta.choice == 0)
    assert last[0].usage.completion_tokens == said < 100
    loop.run(service.end("r", 1))  # too late, and of no harm
    assert loop.run(is_idle(service))


def test_signals_of_a_terminal_do_not_reach_it(service: ProcessService, loop: Any) -> None:
    assert service.pid is not None
    assert os.getpgid(service.pid) == service.pid  # not in the group of the terminal
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(service.pid, number)
    assert len(loop.run(token_ids(service, request("r")))) == 12
    assert loop.run(service.stats()).restarts == 0


def test_it_counts(service: ProcessService, loop: Any) -> None:
    before = loop.run(service.stats())
    loop.run(heard(service, request("r", GOLDEN + GOLDEN)))
    after = loop.run(service.stats())
    assert after.steps == before.steps + 12
    assert after.query_tokens == before.query_tokens + 40
    assert service.silent_seconds == 0
    assert after.pages_total == 256


def test_a_full_queue_refuses_and_goes_on(model: str) -> None:
    async def body() -> None:
        few = TrafficConfig(max_waiting=4)
        async with running(model, traffic=few, max_sequences=1) as service:
            asked = [heard(service, request(f"r{i}", max_tokens=20)) for i in range(20)]
            done = await asyncio.gather(*asked, return_exceptions=True)
            refused = [each for each in done if isinstance(each, OverloadedError)]
            assert len(refused) == 16
            assert all(each.retry_after >= 1 for each in refused)
            answers = [each for each in done if isinstance(each, list)]
            assert [sum(len(d.token_ids) for d in each) for each in answers] == [20] * 4
            assert len(await token_ids(service, request("after"))) == 12

    asyncio.run(body())


def test_drain_lets_answers_finish_and_takes_nothing_new(model: str) -> None:
    async def body() -> None:
        async with running(model) as service:
            answer = asyncio.create_task(token_ids(service, request("open", max_tokens=100)))
            await asyncio.sleep(0)
            draining = asyncio.create_task(service.drain(60))
            await asyncio.sleep(0)
            assert service.state == "draining"
            with pytest.raises(OverloadedError, match="takes nothing new in"):
                await heard(service, request("late"))
            await draining
            assert len(await answer) == 100

    asyncio.run(body())


def test_what_still_runs_when_it_is_closed_hears_so(model: str) -> None:
    async def body() -> None:
        async with running(model) as service:
            answer = asyncio.create_task(token_ids(service, request("open", max_tokens=200)))
            await asyncio.sleep(0)
            await service.drain(0)
        with pytest.raises(EngineClosedError, match="closed while this answer ran"):
            await answer
        with pytest.raises(EngineClosedError):
            await heard(service, request("late"))

    asyncio.run(body())


def test_a_model_that_cannot_be_loaded_says_what_it_says_here(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(ModelNotFoundError, match="there is no model") as fault:
            async with running(str(tmp_path / "absent.gguf")):
                pass
        own = LocalService(str(tmp_path / "absent.gguf"), **SETTINGS)
        with pytest.raises(ModelNotFoundError) as here:
            await own.start()
        assert str(fault.value) == str(here.value)

    before = held()
    asyncio.run(body())
    assert_no_more_than(before)


def test_an_unknown_setting_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="did you mean page_size"):
        ProcessService("smollm2", page_sise=8)
    for name in ("stall_seconds", "load_seconds", "restart_seconds"):
        with pytest.raises(ConfigError, match=f"{name} is 0"):
            ProcessConfig(**{name: 0})
    with pytest.raises(ConfigError, match="max_restarts is -1"):
        ProcessConfig(max_restarts=-1)


STARTER = """
import asyncio, signal, sys

from services import heard, request, running

async def main():
    async with running(sys.argv[1]) as service:
        async for delta in service.follow(request("r", max_tokens=100)):
            print(service.pid, flush=True)
            break
        await asyncio.Event().wait()

# A job in the background of a shell is born deaf to Ctrl-C, and so may this one be.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_it_ends_with_the_process_that_started_it(model: str, number: int) -> None:
    tests = os.pathsep.join(map(str, (Path(__file__).parent, Path(tiny.__file__).parent)))
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, model],
        env=environment(PYTHONPATH=f"{environment()['PYTHONPATH']}{os.pathsep}{tests}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None and starter.stderr is not None
        pid = int(starter.stdout.readline())
        starter.send_signal(number)
        try:
            # Both hold the other end, so there is an end only when both have ended.
            starter.stderr.read()
        finally:
            starter.kill()  # or the end of this block would wait for it
    asyncio.run(until(lambda: has_ended(pid)))  # files close a moment before a process ends


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that waits for whoever adopted it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


def test_a_slow_reader_is_held_at_its_own_answer(
    loop: asyncio.Runner, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the same tokens as a quick one; meanwhile the engine makes no more than a few."""
    monkeypatch.setattr(inboxes, "MOST_UNREAD", 8)

    async def body() -> None:
        async with running(model) as service:
            slow = request("slow", max_tokens=230)
            expected = await token_ids(service, request("quick", max_tokens=230))
            said: list[int] = []
            pauses = 0
            async with aclosing(service.follow(slow)) as deltas:
                async for delta in deltas:
                    said += delta.token_ids
                    if len(said) > 50 * pauses:
                        pauses += 1
                        inbox = service._calls.open["slow"]
                        while not inbox.is_held and len(said) + inbox.qsize() < 230:
                            await asyncio.sleep(0)
                        # Others are answered meanwhile, and the engine then stands still.
                        await token_ids(service, request(f"other-{len(said)}"))
                        assert inbox.qsize() < 100
            assert said == expected and pauses > 2
            stats = await service.stats()
            assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)

    loop.run(body())


def test_a_slow_reader_that_leaves_while_it_is_held_leaves_nothing(
    loop: asyncio.Runner, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "MOST_UNREAD", 4)

    async def body() -> None:
        async with running(model) as service:
            async with aclosing(service.follow(request("slow", max_tokens=230))) as deltas:
                await anext(deltas)
                while not service._calls.open["slow"].is_held:
                    await asyncio.sleep(0)
            stats = await service.stats()
            assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)

    loop.run(body())
