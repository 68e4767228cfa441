"""Slow readers are held at their own answer: the same text, and nobody waits behind them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

import engines
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.service.card import stats_of
from subjects import engine_of


def request(name: str, *, start: int = 20, num_tokens: int = 24, **params: object) -> Request:
    given = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True, **params}
    prompt = tuple(range(start, start + 20))
    return Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(**given))  # type: ignore[arg-type]


def stepped(engine: Engine, said: dict[tuple[str, int], list[int]], count: int = 1) -> None:
    for _ in range(count):
        for delta in engine.step():
            said[delta.request_id, delta.choice] += delta.token_ids


def pages_in_use(engine: Engine) -> int:
    return stats_of(engine).pages_used


def alone(*requests: Request) -> dict[tuple[str, int], list[int]]:
    return {name: list(r.token_ids) for name, r in engines.run(engine_of(), requests).items()}


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.9, "seed": 4}, {"n": 2, "temperature": 1.0, "seed": 1}]
)
def test_a_held_answer_stands_still_and_goes_on_with_the_same_tokens(
    params: dict[str, object],
) -> None:
    slow, quick = request("slow", **params), request("quick", start=60, num_tokens=60)
    engine, said = engine_of(), defaultdict[tuple[str, int], list[int]](list)
    engine.add(slow)
    engine.add(quick)
    stepped(engine, said, 5)
    for round_ in range(3):
        engine.hold("slow", is_held=True)
        engine.hold("slow", is_held=True)  # may be said again
        before = {key: len(ids) for key, ids in said.items()}
        stepped(engine, said, 4)
        grown = {key[0] for key, ids in said.items() if len(ids) > before[key]}
        assert grown == {"quick"}, round_
        engine.hold("slow", is_held=False)
        stepped(engine, said, 3)
    while engine.has_work:
        stepped(engine, said)
    assert said == alone(slow, quick)
    assert pages_in_use(engine) == 0


def test_when_all_are_held_there_is_no_work_until_one_goes_on() -> None:
    slow = request("slow")
    engine, said = engine_of(), defaultdict[tuple[str, int], list[int]](list)
    engine.add(slow)
    stepped(engine, said, 3)
    engine.hold("slow", is_held=True)
    assert not engine.has_work and engine.step() == []
    engine.add(request("late", start=90, num_tokens=3))
    while engine.has_work:
        stepped(engine, said)
    assert len(said["late", 0]) == 3 and len(said["slow", 0]) < 24
    engine.hold("slow", is_held=False)
    while engine.has_work:
        stepped(engine, said)
    assert said["slow", 0] == alone(slow)["slow", 0]
    engine.hold("slow", is_held=True)  # it has ended
    assert not engine.has_work


def test_held_answers_leave_slots_and_pages_to_others() -> None:
    """A cache for two answers and as many slots: twelve held ones keep nobody out."""
    engine = engines.engine(engines.loaded(), num_pages=16, max_sequences=2)
    said = defaultdict[tuple[str, int], list[int]](list)
    for number in range(12):
        engine.add(request(f"slow-{number}", start=20 + number))
        while not said[f"slow-{number}", 0]:
            stepped(engine, said)
        engine.hold(f"slow-{number}", is_held=True)
    engine.add(request("quick", start=60))
    while engine.has_work:
        stepped(engine, said)
    assert len(said["quick", 0]) == 24
    for number in range(12):
        engine.hold(f"slow-{number}", is_held=False)
    while engine.has_work:
        stepped(engine, said)
    assert all(len(ids) == 24 for ids in said.values())
    assert pages_in_use(engine) == 0


def test_one_that_is_cut_while_held_leaves_nothing() -> None:
    engine, said = engine_of(), defaultdict[tuple[str, int], list[int]](list)
    engine.add(request("slow", n=2, temperature=1.0, seed=1))
    engine.add(request("other", start=90))
    stepped(engine, said, 4)
    engine.hold("slow", is_held=True)
    stepped(engine, said, 2)
    engine.abort("slow", choice=1)
    engine.abort("slow")
    assert {delta.finish_reason for delta in engine.step() if delta.request_id == "slow"} == {
        "abort"
    }
    while engine.has_work:
        stepped(engine, said)
    assert pages_in_use(engine) == 0 and not engine.scheduler.has_work
    engine.hold("slow", is_held=False)
    assert not engine.has_work


def test_a_held_answer_ends_by_its_deadline() -> None:
    engine = engine_of()
    engine.add(replace(request("slow", num_tokens=200), deadline=0.2))
    while not engine.step():
        pass
    engine.hold("slow", is_held=True)
    ended: list[str | None] = []
    while not ended:  # as somebody else's steps do
        ended += [delta.finish_reason for delta in engine.step() if delta.finish_reason]
    assert ended == ["abort"]
