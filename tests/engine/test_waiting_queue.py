"""Who is admitted next: the owner with least, among equals in turn; within one, in order."""

from __future__ import annotations

from collections import Counter

import pytest

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission.waiting import WaitingQueue
from cutaway.engine.sequence import Sequence

NOBODY: Counter[str] = Counter()


def make(name: str, owner: str = "") -> Sequence:
    request = Request(request_id=name, prompt_token_ids=(1,), params=SamplingParams(), owner=owner)
    return Sequence(request=request, choice=0, seed=0, max_length=9, cache_root=b"")


def take(queue: WaitingQueue, loads: Counter[str] = NOBODY) -> str:
    first = queue.first(loads)
    queue.pop(first)
    return first.request.request_id


def drain(queue: WaitingQueue) -> list[str]:
    names: list[str] = []
    while queue:
        names.append(take(queue))
    assert len(queue) == 0
    return names


def test_one_owner_is_served_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    for name in "abc":
        queue.add(make(name))
    assert [s.request.request_id for s in queue] == ["a", "b", "c"]
    assert drain(queue) == ["a", "b", "c"]


def test_owners_with_as_much_take_turns() -> None:
    queue = WaitingQueue()
    for name in ("x1", "x2", "x3", "y1", "y2", "z1"):
        queue.add(make(name, name[:1]))
    assert len(queue) == 6
    assert drain(queue) == ["x1", "y1", "z1", "x2", "y2", "x3"]


def test_who_has_least_comes_first() -> None:
    queue = WaitingQueue()
    for name in ("x1", "y1", "z1"):
        queue.add(make(name, name[:1]))
    loads = Counter({"x": 3, "y": 2, "z": 2})
    assert take(queue, loads) == "y1"
    assert take(queue, Counter({"x": 1, "z": 2})) == "x1"


def test_a_late_owner_waits_for_one_turn_at_most() -> None:
    queue = WaitingQueue()
    for number in range(1000):
        queue.add(make(f"flood{number}", "flood"))
    assert take(queue) == "flood0"
    queue.add(make("late", "late"))
    assert [take(queue) for _ in range(3)] == ["flood1", "late", "flood2"]


def test_preempted_sequences_are_the_first_of_their_owner_and_the_oldest_of_them_before_all() -> (
    None
):
    queue = WaitingQueue()
    old, young = make("old"), make("young")
    queue.add(make("new"))
    queue.add(make("other", "other"))
    queue.add_preempted(young)  # the scheduler gives up its youngest first
    queue.add_preempted(old)
    assert len(queue) == 4
    assert drain(queue) == ["old", "other", "young", "new"]


def test_a_turn_for_nothing_is_given_back_and_those_taken_meanwhile_are_not() -> None:
    queue = WaitingQueue()
    for name in ("x1", "y1", "z1", "x2", "y2"):
        queue.add(make(name, name[:1]))
    turns: dict[str, tuple[Sequence, int]] = {}
    for owner in "xyz":  # z has nobody left who waits: it stands nowhere
        first = queue.first(NOBODY)
        turns[owner] = (first, queue.pop(first))
    for owner in "zy":
        queue.give_back(*turns[owner])
    assert drain(queue) == ["y1", "z1", "x2", "y2"]


def test_a_sequence_can_leave_from_anywhere() -> None:
    queue = WaitingQueue()
    a, b, c, d = make("a"), make("b"), make("c", "other"), make("d")
    for each in (a, b, c):
        queue.add(each)
    queue.add_preempted(d)
    for each in (d, c, a):
        queue.remove(each)
    assert [*queue] == [b]
    assert drain(queue) == ["b"]


def test_out_of_turn_is_our_fault() -> None:
    queue = WaitingQueue()
    a, b = make("a"), make("b")
    queue.add(a)
    queue.add(b)
    with pytest.raises(AssertionError, match="in order"):
        queue.pop(b)
