"""Requests that may take so long and no longer, wherever they stand when their time is over."""

from __future__ import annotations

import math

import pytest

import engines
from cutaway.core.errors import DeadlineError, RequestError
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine import engine as module
from cutaway.engine.engine import Engine
from cutaway.engine.loading import loaded_model


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def request(name: str, deadline: float | None, **params: int) -> Request:
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 50, **params}
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(20)),
        params=SamplingParams(**settings),
        deadline=deadline,
    )


def ends(deltas: list[Delta]) -> dict[tuple[str, int], Delta]:
    return {(d.request_id, d.choice): d for d in deltas if d.finish_reason is not None}


def num_used(target: Engine) -> int:
    return target.cache_stats.used


def test_a_running_answer_ends_at_its_deadline_and_frees_its_pages(clock: Clock) -> None:
    target = engines.engine(engines.loaded())
    target.add(request("late", 5.0))
    target.add(request("patient", None))
    for _ in range(3):
        assert not ends(target.step())
    both = num_used(target)
    clock.now += 5.0
    last = ends(target.step())[("late", 0)]
    assert last.finish_reason == "abort" and last.usage is not None
    assert last.usage.completion_tokens == 3
    assert isinstance(last.error, DeadlineError)
    assert "longer than its deadline of 5 seconds" in str(last.error)
    assert num_used(target) < both
    while target.has_work:
        done = ends(target.step())
    assert done[("patient", 0)].finish_reason == "length"
    assert num_used(target) == 0


def test_waiting_answers_and_all_choices_end_too(clock: Clock) -> None:
    target = engines.engine(engines.loaded(), max_sequences=1)
    target.add(request("first", None))
    target.add(request("queued", 2.0, n=3))
    target.step()
    clock.now += 2.5
    done = ends(target.step())
    assert sorted(done) == [("queued", 0), ("queued", 1), ("queued", 2)]
    assert target.scheduler.num_waiting == 0


def test_each_request_has_a_deadline_of_its_own(clock: Clock) -> None:
    target = engines.engine(engines.loaded())
    for name, seconds in (("b", 20.0), ("a", 10.0), ("c", 30.0)):
        target.add(request(name, seconds))
    order: list[str] = []
    while target.has_work:
        order += [name for name, _ in ends(target.step())]
        clock.now += 6.0
    assert order == ["a", "b", "c"]


def test_an_answer_that_ends_in_time_hears_nothing_of_it(clock: Clock) -> None:
    target = engines.engine(engines.loaded())
    target.add(request("quick", 5.0, max_tokens=2))
    target.step()
    assert ends(target.step())[("quick", 0)].error is None
    clock.now += 10.0
    assert target.step() == [] and not target.has_work


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_deadline_is_a_number_of_seconds_above_zero(seconds: float) -> None:
    with pytest.raises(RequestError, match=r"deadline is .*; it must be a number of seconds"):
        request("r", seconds)


def test_a_request_that_raises_when_added_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    target = engines.engine(engines.loaded())

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(loaded_model, "TextStream", broken)
        with pytest.raises(ZeroDivisionError):
            target.add(request("r", None))
    assert not target.has_work
    answers = engines.run(target, [request("r", None, max_tokens=3)])
    assert len(answers[("r", 0)].token_ids) == 3
