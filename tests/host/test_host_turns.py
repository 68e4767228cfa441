"""Work in pieces: others between its breaths, the same result, and an end where nobody waits."""

from __future__ import annotations

import threading

import pytest

from cutaway.host import turns
from cutaway.host.turns import breathe, in_turns


@pytest.fixture(autouse=True)
def at_every_breath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)


def summed(count: int, seen: list[int]) -> int:
    for number in range(count):
        seen.append(number)
        breathe()
    return sum(seen)


def test_it_stops_at_each_breath_and_gives_what_the_work_gives() -> None:
    seen: list[int] = []
    steps = in_turns(lambda: summed(5, seen))
    for number in range(5):
        assert next(steps) is None and seen == [*range(number + 1)]
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == summed(5, []) == 10, "without turns a breath is nothing"


def test_short_pieces_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE_SECONDS", 3600.0)
    seen: list[int] = []
    with pytest.raises(StopIteration) as ended:
        next(in_turns(lambda: summed(1000, seen)))
    assert ended.value.value == sum(range(1000))


def test_a_fault_is_raised_where_the_steps_are_taken() -> None:
    def broken() -> None:
        breathe()
        raise ZeroDivisionError("a fault")

    steps = in_turns(broken)
    next(steps)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        next(steps)


def test_one_that_is_left_ends_at_its_breath_and_leaves_no_thread() -> None:
    left: list[str] = []
    before = threading.active_count()

    def work() -> None:
        try:
            summed(1000, [])
        except Exception:
            left.append("a handler of faults took it for one")
        finally:
            breathe()  # while it ends, nobody waits for a turn
            left.append("cleaned up")

    steps = in_turns(work)
    next(steps)
    assert threading.active_count() == before + 1
    steps.close()
    assert left == ["cleaned up"]
    assert threading.active_count() == before
    never = in_turns(work)
    never.close()
    assert threading.active_count() == before


def test_only_one_of_the_two_runs_at_any_moment() -> None:
    running, most = [0], [0]

    def count() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        running[0] -= 1

    def work() -> None:
        for _ in range(200):
            count()
            breathe()

    for _ in in_turns(work):
        count()
    assert most == [1]
