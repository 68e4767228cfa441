"""Looks at answers through a fleet, whatever has become of the engine that made them."""

from __future__ import annotations

import asyncio

import pytest
from fleet_fakes import Engines, asked, heard, in_loop

from cutaway.core.looks import ViewRequest
from cutaway.core.output import DrawProof, ToldChoice
from cutaway.fleet.kept_answers import KeptAnswers


def look_at(request_id: str) -> ViewRequest:
    return ViewRequest(
        request_id=request_id,
        choice=0,
        owner="",
        view="tokens",
        places={},
        is_json=True,
        is_cost=False,
        max_bytes=1,
        max_flops=1,
    )


@in_loop
async def test_a_look_goes_to_the_engine_that_has_the_record() -> None:
    async with Engines(replicas=3) as engines:
        for i in range(9):
            await heard(engines.fleet, asked(f"r{i}"))
        for i in range(9):
            keeper = next(e for e in engines.all.values() if f"r{i}" in e.asked)
            assert (await engines.fleet.view(look_at(f"r{i}"))).decode() == keeper.name


@in_loop
async def test_scale_f3_answers_and_counts_of_engines_that_ended_or_left_are_found() -> None:
    async with Engines(replicas=2, drain_seconds=0.01) as engines:
        requests = [asked(f"r{i}", n=1 + i % 2) for i in range(12)]
        for request in requests:
            await heard(engines.fleet, request)
        before = (await engines.fleet.stats()).steps
        engines[0].kill()
        while engines.fleet.num_ready < 2:
            await asyncio.sleep(0.001)
        await engines.fleet.roll()
        for request in requests:
            name = (await engines.fleet.view(look_at(request.request_id))).decode()
            assert request.request_id in engines.all[name].records
            assert await engines.fleet.view(look_at(request.request_id)) == name.encode()
        assert sum(len(e.records) for n, e in engines.all.items() if n in "23") >= 12
        assert (await engines.fleet.stats()).steps == before + 3 * 3, "of each start so far"


def test_ended_answers_are_kept_within_bounds_and_come_back_whole() -> None:
    kept = KeptAnswers(most_bytes=10_000)
    draws = (DrawProof(None, 1.5, -2.0, 2**64 - 1), DrawProof(2**32 - 1, 0.1, 3.0, 0))
    told = (ToldChoice(1, (7, 8), draws, "stop"),)
    for number in range(50):
        kept.add(asked(f"r{number}", deadline=1.0), told, numeric_class="a")
        assert kept.num_bytes <= 10_000
    assert kept.find("r0") is None
    request, choices, numeric_class = kept.find("r49") or pytest.fail("the latest is kept")
    assert (choices, numeric_class) == (told, "a")
    assert request.prompt_token_ids == asked("r49").prompt_token_ids
    assert request.deadline is None
