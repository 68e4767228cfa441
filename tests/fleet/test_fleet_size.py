"""How many engines a fleet has: more where somebody waits, fewer after long, and no swinging."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest
from fleet_fakes import Engines, asked, heard, in_loop, whole

from cutaway.core.errors import ConfigError
from cutaway.fleet import fleet, fleet_size
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.fleet.fleet_size import IDLE_SECONDS, FleetLoad, FleetSize, load_of
from cutaway.service.service import EngineStats

LOOK = fleet.WATCH_SECONDS


def sizes_under(load: float, *, hours: float, noise: float = 0.0, most: int = 5) -> list[int]:
    """Engines at each look, of a fleet of one to most, under a load in engines.

    Who comes waits where it is more than the engines that there are.
    """
    size, chance = FleetSize(1, most), random.Random(4)
    engines, sizes = 1, list[int]()
    for number in range(int(hours * 3600 / LOOK)):
        now = load * (1 + chance.uniform(-noise, noise))
        waited = 5.0 if now >= engines else 0.0
        seen = FleetLoad(waited=waited, engines=engines, load=min(now, float(engines)))
        engines = size.look(number * LOOK, seen)
        sizes.append(engines)
    return sizes


@pytest.mark.parametrize("load", [0.0, 0.3, 0.69, 0.71, 0.95, 1.0, 1.35, 1.45, 2.0, 2.9, 3.3, 9.0])
@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_scale_s29_a_steady_load_changes_nothing_in_30_minutes(load: float, noise: float) -> None:
    sizes = sizes_under(load, hours=3, noise=noise)
    settled = sizes[int(3600 / LOOK) :]
    for begin in range(0, len(settled), int(1800 / LOOK)):
        assert len(set(settled[begin : begin + int(1800 / LOOK)])) == 1, set(settled)
    assert settled[-1] == 5 or settled[-1] > load


def test_scale_s29_engines_leave_one_by_one_and_late() -> None:
    size = FleetSize(1, 4)
    engines = 4
    seen = [(0.0, engines)]
    for number in range(int(3 * IDLE_SECONDS / LOOK) + 8):
        now = number * LOOK
        after = size.look(now, FleetLoad(waited=0.0, engines=engines, load=0.0))
        assert after in (engines, engines - 1)
        if after != engines:
            seen.append((now, after))
        engines = after
    assert [count for _, count in seen] == [4, 3, 2, 1]
    gaps = [b - a for (a, _), (b, _) in pairwise(seen)]
    assert min(gaps) >= IDLE_SECONDS


def test_one_that_waits_long_for_its_own_prompt_starts_nothing() -> None:
    size = FleetSize(1, 4)
    waits = [0.0, 3.0, 0.0, 3.0, 0.0]
    assert {
        size.look(n, FleetLoad(waited=w, engines=1, load=0.5)) for n, w in enumerate(waits)
    } == {1}
    twice = [size.look(9 + n, FleetLoad(waited=3.0, engines=1, load=0.5)) for n in range(2)]
    assert twice == [1, 2], "twice in a row does"


def test_an_engine_is_as_full_as_what_it_has_least_left_of() -> None:
    idle = EngineStats(max_sequences=10, pages_total=100, prompt_rate=1000.0)
    whole_ = {"max_sequences": 10, "pages_total": 100, "prompt_rate": 1000.0}
    places = EngineStats(running=5, pages_used=20, **whole_)
    pages = EngineStats(running=1, pages_used=80, **whole_)
    prompts = EngineStats(query_tokens=1500, hit_tokens=600, **whole_)
    assert load_of([idle] * 4, [idle, places, pages, prompts], 1.0) == pytest.approx(
        0.5 + 0.8 + 0.9
    )
    assert load_of([prompts], [idle], 1.0) == 0.0, "it was started anew"


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that follow one another at once."""
    monkeypatch.setattr(fleet, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(fleet_size, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(fleet_size, "IDLE_SECONDS", 0.3)


async def until_size(engines: Engines, count: int) -> None:
    async with asyncio.timeout(60):
        while len(engines.fleet.members) != count or engines.fleet.num_ready != count:
            await asyncio.sleep(0.005)


@in_loop
async def test_scale_s29_a_fleet_grows_while_somebody_waits_and_shrinks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasten(monkeypatch)
    engines = Engines(replicas=1, most_replicas=3)
    engines.prepare = lambda engine: setattr(engine, "pace", 0.02)
    async with engines:
        requests = [asked(f"r{number}", max_tokens=30) for number in range(60)]
        answers = [asyncio.create_task(heard(engines.fleet, each)) for each in requests]
        await until_size(engines, 3)
        for request, answer in zip(requests, answers, strict=True):
            told = {choice: ids for choice, (ids, _, _) in (await answer).items()}
            assert told == whole(request), "and no stream is cut"
        # What was once counted as given to an engine and never as given back holds nothing.
        for member in engines.fleet.members:
            assert member.load is not None
            member.load.bound += 7
        await until_size(engines, 1)
        assert engines.fleet.wanted_replicas == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"replicas": 2, "most_replicas": 1},
            "most_replicas is 1; it must be from replicas, 2, to",
        ),
        ({"most_replicas": 257}, "most_replicas is 257; it must be from replicas, 1, to 256"),
        (
            {"replicas": 0, "members": ("tcp://h:1",), "most_replicas": 2},
            "most_replicas is 2 and replicas is 0",
        ),
    ],
)
def test_bounds_of_the_size_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FleetConfig(**settings)
