"""Who is admitted next: preempted sequences, then owners in turn."""

from __future__ import annotations

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.sequence import Sequence
from cutaway.engine.waiting import WaitingQueue


def make(name: str, owner: str = "") -> Sequence:
    request = Request(request_id=name, prompt_token_ids=(1,), params=SamplingParams(), owner=owner)
    return Sequence(request=request, choice=0, seed=0, max_length=9, cache_root=b"")


def drain(queue: WaitingQueue) -> list[str]:
    names: list[str] = []
    while queue:
        first = queue.first
        assert queue.pop() is first
        names.append(first.request.request_id)
    assert len(queue) == 0
    return names


def test_one_owner_is_served_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    for name in "abc":
        queue.add(make(name))
    assert [s.request.request_id for s in queue] == ["a", "b", "c"]
    assert drain(queue) == ["a", "b", "c"]


def test_owners_take_turns() -> None:
    queue = WaitingQueue()
    for name in ("x1", "x2", "x3", "y1", "y2", "z1"):
        queue.add(make(name, name[:1]))
    assert len(queue) == 6
    assert drain(queue) == ["x1", "y1", "z1", "x2", "y2", "x3"]


def test_a_late_owner_waits_for_one_round_at_most() -> None:
    queue = WaitingQueue()
    for number in range(1000):
        queue.add(make(f"flood{number}", "flood"))
    assert queue.pop().request.request_id == "flood0"
    queue.add(make("late", "late"))
    assert [queue.pop().request.request_id for _ in range(3)] == ["flood1", "late", "flood2"]


def test_preempted_sequences_come_first_and_the_oldest_of_them_before_all() -> None:
    queue = WaitingQueue()
    old, young = make("old"), make("young")
    queue.add(make("new"))
    queue.add_preempted(young)  # the scheduler gives up its youngest first
    queue.add_preempted(old)
    assert len(queue) == 3
    assert drain(queue) == ["old", "young", "new"]


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
