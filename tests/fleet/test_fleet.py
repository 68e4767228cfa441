"""A fleet over scripted engines: who answers, and what happens when an engine ends."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from fleet_fakes import Engines, FakeEngine, asked, heard, in_loop, whole

from cutaway.core.errors import (
    ConfigError,
    DeadlineError,
    EngineClosedError,
    OverloadedError,
    RequestError,
)
from cutaway.fleet.engine_places import check_memory
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.service.bounds import TrafficConfig


def assert_whole(request: Any, got: dict[int, tuple[list[int], str, Any]]) -> None:
    assert {choice: ids for choice, (ids, _, _) in got.items()} == whole(request)
    for choice, (ids, text, last) in got.items():
        assert text == "".join(f"<{each}>" for each in ids), choice
        assert last.finish_reason == "length"
        assert last.usage.completion_tokens == request.params.max_tokens


@pytest.mark.parametrize("n", [1, 3])
@in_loop
async def test_an_answer_without_trouble_is_one_engines_own(n: int) -> None:
    async with Engines(replicas=2) as engines:
        request = asked("a", n=n)
        got = await heard(engines.fleet, request)
        assert_whole(request, got)
        assert all(last.seam is None for _, _, last in got.values()), "there is no seam"


@in_loop
async def test_scale_f1_streams_outlive_engines_that_are_killed() -> None:
    chance = random.Random(1)
    async with Engines(replicas=4) as engines:
        for round_ in range(20):
            requests = [
                asked(f"{round_}-{i}", n=chance.choice([1, 1, 2, 3]), max_tokens=40)
                for i in range(30)
            ]

            async def kill() -> None:
                await asyncio.sleep(chance.uniform(0.001, 0.02))
                chance.choice(list(engines.all.values())).kill()

            *answers, _ = await asyncio.gather(
                *(heard(engines.fleet, request) for request in requests), kill()
            )
            for request, got in zip(requests, answers, strict=True):
                assert_whole(request, got)
                assert all(last.seam in (None, True) for _, _, last in got.values())
        stats = (await engines.fleet.stats()).fleet
        assert stats is not None and stats.resumed.get("true", 0) > 0
        assert "false" not in stats.resumed


@in_loop
async def test_scale_f2_two_of_four_at_once_and_in_mid_resume() -> None:
    async with Engines(replicas=4) as engines:
        requests = [asked(f"r{i}", max_tokens=200) for i in range(24)]

        async def kill() -> None:
            await asyncio.sleep(0.02)
            engines[0].kill()
            engines[1].kill()
            await asyncio.sleep(0)  # who goes on elsewhere has not passed its seam
            engines[2].kill()

        *answers, _ = await asyncio.gather(*(heard(engines.fleet, r) for r in requests), kill())
        for request, got in zip(requests, answers, strict=True):
            assert_whole(request, got)


@in_loop
async def test_scale_f2_all_engines_die_and_one_comes_back() -> None:
    async with Engines(replicas=2) as engines:
        request = asked("a", max_tokens=100)
        answer = asyncio.create_task(heard(engines.fleet, request))
        await asyncio.sleep(0.01)
        for engine in engines.all.values():
            engine.kill()
        assert engines.fleet.state == "failed", "nothing new is taken in meanwhile"
        assert_whole(request, await answer)


@in_loop
async def test_scale_s17_retired_engines_cut_no_stream() -> None:
    async with Engines(replicas=4, drain_seconds=0.01) as engines:
        for engine in engines.all.values():
            engine.pace = 0.001
        requests = [asked(f"r{i}", max_tokens=100) for i in range(24)]
        answers = [asyncio.create_task(heard(engines.fleet, each)) for each in requests]
        await asyncio.sleep(0.02)
        await engines.fleet.scale(1)
        assert engines.fleet.num_ready == 1
        await engines.fleet.scale(4)
        for request, answer in zip(requests, answers, strict=True):
            assert_whole(request, await answer)
        assert sum(engine.closed for engine in engines.all.values()) == 3


@in_loop
async def test_scale_f3_a_roll_replaces_every_engine_and_cuts_nothing() -> None:
    async with Engines(replicas=3, drain_seconds=0.01) as engines:
        requests = [asked(f"r{i}", max_tokens=300) for i in range(12)]
        answers = [asyncio.create_task(heard(engines.fleet, each)) for each in requests]
        await asyncio.sleep(0.005)
        await engines.fleet.roll()
        assert [m.name for m in engines.fleet.members] == ["3", "4", "5"]
        for request, answer in zip(requests, answers, strict=True):
            assert_whole(request, await answer)


@in_loop
async def test_a_new_version_that_gives_other_numbers_is_refused_and_the_old_stays() -> None:
    async with Engines(replicas=2) as engines:
        engines.prepare = lambda engine: setattr(engine, "numbers", 7)
        await engines.fleet.roll()
        assert engines.fleet.num_ready == 2
        assert not engines[0].closed and not engines[1].closed
        assert any("gave other numbers" in each for each in engines.told)


@in_loop
async def test_scale_s21_a_poisonous_request_ends_alone_and_after_two_more_tries() -> None:
    async with Engines(replicas=3) as engines:
        for engine in engines.all.values():
            engine.poison, engine.poison_after, engine.pace = 950, 3, 0.001
        good = [asked(f"g{i}", max_tokens=100) for i in range(12)]
        answers = [asyncio.create_task(heard(engines.fleet, each)) for each in good]
        await asyncio.sleep(0.01)
        with pytest.raises(EngineClosedError, match="3 engines ended while they computed"):
            await heard(engines.fleet, asked("bad", prompt=(950, 1, 2)))
        for request, answer in zip(good, answers, strict=True):
            assert_whole(request, await answer)


@in_loop
async def test_scale_s25_an_engine_with_another_secret_does_not_join() -> None:
    async with Engines(replicas=1) as engines:

        def foreign(engine: FakeEngine) -> None:
            engine.terms = engine.terms.__class__(
                max_sequences=8, cache_tokens=4096, numeric_class="a", page_keys=b"other"
            )

        engines.prepare = foreign
        await engines.fleet.scale(2)
        while len(engines.told) < 2:
            await asyncio.sleep(0.001)
        assert "another secret" in engines.told[-1]
        assert engines.fleet.num_ready == 1


@in_loop
async def test_scale_s30_bad_requests_and_readers_who_leave_count_against_nobody() -> None:
    async with Engines(replicas=2) as engines:
        for engine in engines.all.values():
            engine.refusal = RequestError("the engine does not take this.")
        for number in range(50):
            with pytest.raises(RequestError, match="does not take this"):
                await heard(engines.fleet, asked(f"bad{number}"))
            async with aclosing(engines.fleet.follow(asked(f"left{number}"))) as deltas:
                async for _ in deltas:
                    break
        assert engines.fleet.num_ready == 2
        assert all(engine.num_starts == 1 for engine in engines.all.values())
        sent = [sum("bad" in name for name in e.asked) for e in engines.all.values()]
        assert min(sent) > 10, "both go on getting requests"
        request = asked("good")
        assert_whole(request, await heard(engines.fleet, request))


@in_loop
async def test_scale_s28_a_hung_engine_loses_its_streams_to_others() -> None:
    async with Engines(replicas=2, hang_seconds=3.0) as engines:
        request = asked("a", max_tokens=50)
        for engine in engines.all.values():
            engine.pace = 0.01
        answer = asyncio.create_task(heard(engines.fleet, request))
        await asyncio.sleep(0.05)
        held = next(e for e in engines.all.values() if e.running)
        held.silent_seconds, held.pace = 9.0, 0.02
        assert_whole(request, await answer)
        other = next(e for e in engines.all.values() if e is not held)
        assert "a" in other.asked, "it went on there"


@pytest.mark.parametrize("resume", ["class", "strict", "any"])
@in_loop
async def test_scale_f7_a_planted_unlike_row(resume: str) -> None:
    async with Engines(replicas=2, resume=resume) as engines:
        for engine in engines.all.values():
            engine.restart_seconds, engine.pace = 100, 0.002
        request = asked("a", max_tokens=60)
        answer = asyncio.create_task(heard(engines.fleet, request))
        while not any(engine.running for engine in engines.all.values()):
            await asyncio.sleep(0)
        await asyncio.sleep(0.005)
        first = next(e for e in engines.all.values() if e.running)
        other = next(e for e in engines.all.values() if e is not first)
        other.numbers = 1  # its rows come out otherwise from now on
        first.kill()
        got = await answer
        if resume == "strict":
            assert "row of its last token" in str(got[0][2].error)
        else:
            assert_whole(request, got)
            assert got[0][2].seam is False, "the last news says that a seam was not exact"
        [counted] = (await engines.fleet.stats()).guesses
        assert counted.tried % 3 == 0 and counted.right * 3 == counted.tried * 2
        stats = (await engines.fleet.stats()).fleet
        assert stats is not None and stats.resumed == {"false": 1}


@pytest.mark.parametrize(
    ("resume", "goes_on"), [("class", False), ("strict", False), ("any", True)]
)
@in_loop
async def test_scale_f7_another_class(resume: str, goes_on: bool) -> None:
    engines = Engines(replicas=2, resume=resume)

    def unlike(engine: FakeEngine) -> None:
        engine.restart_seconds, engine.pace = 100, 0.002
        if engine.name == "1":
            engine.numbers = 1
            engine.terms = engine.terms.__class__(
                max_sequences=8,
                cache_tokens=4096,
                numeric_class="b",
                page_keys=engine.terms.page_keys,
            )

    engines.prepare = unlike
    async with engines:
        request = asked("a", max_tokens=60)
        answer = asyncio.create_task(heard(engines.fleet, request))
        while not any(engine.running for engine in engines.all.values()):
            await asyncio.sleep(0)
        await asyncio.sleep(0.005)
        first = next(e for e in engines.all.values() if e.running)
        first.kill()
        if goes_on:
            got = await answer
            assert_whole(request, got)
            assert got[0][2].seam is False
        else:
            await asyncio.sleep(0.02)
            assert not answer.done(), "the engine of its numbers comes back"
            first._back()
            assert_whole(request, await answer)


@in_loop
async def test_resume_off_ends_in_an_error() -> None:
    async with Engines(replicas=2, resume="off") as engines:
        engines[0].pace = engines[1].pace = 0.002
        answer = asyncio.create_task(heard(engines.fleet, asked("a", max_tokens=60)))
        await asyncio.sleep(0.01)
        next(e for e in engines.all.values() if e.running).kill()
        with pytest.raises(EngineClosedError, match="does not resume"):
            await answer


@in_loop
async def test_a_choice_that_its_reader_ends_is_ended_wherever_it_is() -> None:
    async with Engines(replicas=2) as engines:
        last = []
        request = asked("a", n=2, max_tokens=50)
        async with aclosing(engines.fleet.follow(request)) as deltas:
            async for delta in deltas:
                if delta.choice == 1 and not last:
                    next(e for e in engines.all.values() if e.running).kill()
                    await engines.fleet.end("a", 1)
                    last.append(None)
                if delta.finish_reason is not None:
                    last.append(delta)
        reasons = {each.choice: each.finish_reason for each in last[1:]}
        assert reasons == {0: "length", 1: "abort"}


@in_loop
async def test_a_reader_who_leaves_leaves_nothing_behind() -> None:
    async with Engines(replicas=2) as engines:
        for i in range(20):
            async with aclosing(engines.fleet.follow(asked(f"r{i}", max_tokens=50))) as deltas:
                async for _ in deltas:
                    break
        await asyncio.sleep(0.01)
        for member in engines.fleet.members:
            assert member.load is not None
            assert (member.load.bound, member.load.waiting_tokens) == (0, 0)
            assert not member.streams and not member.load.owners


@in_loop
async def test_closing_ends_all_that_runs_and_all_that_comes_later() -> None:
    async with Engines(replicas=2) as engines:
        for each in engines.all.values():
            each.pace = 0.001
        answers = [heard(engines.fleet, asked(f"r{i}", max_tokens=4000)) for i in range(24)]
        running = [asyncio.create_task(each) for each in answers]
        while len(engines.fleet._streams) < 24 or not engines[0].running:
            await asyncio.sleep(0.001)
        leaving = asyncio.create_task(engines.fleet.scale(1))
        await asyncio.sleep(0.01)
        await engines.fleet.close()
        # Some had an engine and some waited for one: nobody waits any more.
        for told in await asyncio.gather(*running, leaving, return_exceptions=True):
            assert isinstance(told, EngineClosedError) or told is None
        assert not engines.fleet._streams
        num_made = len(engines.all)
        for later in (
            heard(engines.fleet, asked("later")),
            engines.fleet.scale(2),
            engines.fleet.roll(),
            engines.fleet.wait_until_gone(),
            engines.fleet.start(),
        ):
            with pytest.raises(EngineClosedError):
                await later
        assert len(engines.all) == num_made, "an engine was started after the end"


@in_loop
async def test_a_fleet_that_is_closed_while_it_starts_says_so() -> None:
    def keep_out(engine: FakeEngine) -> None:
        engine.start = asyncio.get_running_loop().create_future  # type: ignore[method-assign]

    engines = Engines(replicas=1)
    engines.prepare = keep_out
    starting = asyncio.create_task(engines.fleet.start())
    await asyncio.sleep(0.01)
    await engines.fleet.close()
    with pytest.raises(EngineClosedError):
        await starting


@in_loop
async def test_late_binding_keeps_the_rest_at_the_fleet_and_a_newcomer_helps_at_once() -> None:
    async with Engines(replicas=1, traffic=TrafficConfig(max_waiting=100)) as engines:
        engines[0].pace = 0.005
        answers = [
            asyncio.create_task(heard(engines.fleet, asked(f"r{i}", max_tokens=20)))
            for i in range(40)
        ]
        await asyncio.sleep(0.03)
        assert len(engines[0].running) <= 8, "no more than it can run at once"
        await engines.fleet.scale(2)
        await asyncio.gather(*answers)
        assert engines[1].asked, "the new engine took of what waited"


@in_loop
async def test_owners_take_turns_while_a_flood_waits() -> None:
    async with Engines(replicas=2) as engines:
        for engine in engines.all.values():
            engine.pace = 0.002
        flood = [
            asyncio.create_task(heard(engines.fleet, asked(f"f{i}", owner="flood", max_tokens=20)))
            for i in range(60)
        ]
        await asyncio.sleep(0.02)
        await heard(engines.fleet, asked("other", owner="other", max_tokens=20))
        num_done = sum(each.done() for each in flood)
        assert num_done <= 32, "the other's turn came before the flood's end"
        await asyncio.gather(*flood)


@in_loop
async def test_a_deadline_runs_while_a_request_waits() -> None:
    async with Engines(replicas=1) as engines:
        engines[0].pace = 10
        busy = [asyncio.create_task(heard(engines.fleet, asked(f"r{i}"))) for i in range(8)]
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineError, match=r"deadline of 0\.05 seconds"):
            await heard(engines.fleet, asked("late", deadline=0.05))
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


@in_loop
async def test_too_much_that_waits_is_refused_with_the_time_to_come_back() -> None:
    async with Engines(replicas=1, traffic=TrafficConfig(max_waiting=1)) as engines:
        engines[0].pace = 10
        busy = [asyncio.create_task(heard(engines.fleet, asked(f"r{i}"))) for i in range(9)]
        await asyncio.sleep(0.01)
        with pytest.raises(OverloadedError) as refused:
            await heard(engines.fleet, asked("more"))
        assert refused.value.retry_after >= 1
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


@in_loop
async def test_bad_requests_are_refused_before_any_engine_has_them() -> None:
    async with Engines(replicas=1) as engines:
        with pytest.raises(RequestError, match="token id 5000"):
            await heard(engines.fleet, asked("a", prompt=(5000,)))
        assert "a" not in engines[0].asked


@in_loop
async def test_scale_s31_a_thousand_streams_at_once_all_end() -> None:
    """What the front costs is measured by bench/fleet_cost.py."""
    async with Engines(replicas=4, traffic=TrafficConfig(max_waiting=2000)) as engines:
        requests = [asked(f"r{i}", max_tokens=4) for i in range(1000)]
        answers = await asyncio.gather(*(heard(engines.fleet, each) for each in requests))
        for request, got in zip(requests, answers, strict=True):
            assert_whole(request, got)


@in_loop
async def test_a_model_that_cannot_be_loaded_keeps_the_fleet_from_starting() -> None:
    engines = Engines(replicas=2)
    engines.prepare = lambda engine: setattr(engine, "fails_to_start", ConfigError("no model"))
    with pytest.raises(ConfigError, match="no model"):
        await engines.fleet.start()
    await engines.fleet.close()


@in_loop
async def test_engines_of_one_machine_are_taken_for_alike() -> None:
    """How fast each says it is tells who was busy beside it, and would send all to the luckiest."""
    engines = Engines(replicas=3)
    rates = {"0": 500.0, "1": 1000.0, "2": 3000.0}
    engines.prepare = lambda engine: setattr(engine, "rate", rates[engine.name])
    async with engines:
        await engines.fleet._crew.count()
        assert {member.load.rate for member in engines.fleet.members} == {1500.0}


@in_loop
async def test_least_ready_is_waited_for_once() -> None:
    engines = Engines(replicas=3, least_ready=3)
    engines.prepare = lambda engine: setattr(engine, "restart_seconds", None)
    starting = asyncio.create_task(engines.fleet.start())
    await asyncio.sleep(0)
    assert engines.fleet.state == "starting"
    await starting
    assert engines.fleet.num_ready == 3
    for number in (0, 1):
        engines[number].kill()
        assert engines.fleet.state == "ready", "what is left is better than nothing"
    engines[2].kill()
    assert engines.fleet.state == "failed"
    await engines.fleet.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replicas": 0}, "replicas is 0; it must be from 1 to 256"),
        ({"replicas": 2, "least_ready": 3}, "least_ready is 3; it must be from 1 to replicas, 2"),
        ({"resume": "maybe"}, 'resume is "maybe"; it must be one of class, strict, any, off'),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FleetConfig(**settings)


def test_more_engines_than_a_machine_has_cores_for_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert FleetConfig(replicas=8).replicas == 8
    with pytest.raises(ConfigError, match="replicas is 9, and this machine has 2 cores; it must"):
        FleetConfig(replicas=9)


def test_engines_whose_weights_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        with (tmp_path / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(2**30)  # holes: no disk is written
    check_memory(2, tmp_path, free=2**32)
    check_memory(1, tmp_path, free=1)  # one engine is loaded as it always was
    check_memory(9, tmp_path, free=None)
    words = "replicas is 3, and the weights of each take 2.0 GiB as they are stored, 6.0 GiB "
    with pytest.raises(ConfigError, match=words + "together; 4.5 GiB are free. At most 2 fit"):
        check_memory(3, tmp_path, free=9 * 2**29)
