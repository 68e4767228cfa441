"""Work beside what people wait for: its results, its faults, and when it gives way."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from cutaway.host import aside
from cutaway.host.aside import PriorityAllowance, run_aside


def own() -> int:
    """How the thread that asks is scheduled."""
    return os.sched_getscheduler(threading.get_native_id())


def test_it_gives_what_the_work_gives_or_raises() -> None:
    assert run_aside(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_aside(lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):

        def panic() -> None:
            raise KeyboardInterrupt

        run_aside(panic)


def test_the_work_has_the_stack_that_it_asks_for_and_others_keep_theirs() -> None:
    def deep(left: int) -> int:
        return 0 if not left else 1 + deep(left - 1)

    before = threading.stack_size()
    assert run_aside(lambda: deep(100), stack_bytes=2**24) == 100
    assert threading.stack_size() == before


@pytest.mark.skipif(sys.platform != "linux", reason="threads cannot give way")
def test_work_that_takes_long_gives_way_and_no_other_thread_does() -> None:
    usual = own()

    def until_lower() -> int:
        ends = time.monotonic() + 60
        while own() == usual and time.monotonic() < ends:
            time.sleep(0.001)
        return own()

    assert run_aside(own, allowance=PriorityAllowance(30)) == usual, "short work is like any other"
    assert run_aside(until_lower, allowance=PriorityAllowance(0.01)) == os.SCHED_IDLE
    assert own() == usual and run_aside(own, allowance=PriorityAllowance(30)) == usual


@pytest.mark.skipif(sys.platform != "linux", reason="threads cannot give way")
def test_work_that_others_leave_no_core_is_begun_again_at_a_low_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aside, "STARVED_SECONDS", 0.05)
    over, begun, usual = threading.Event(), list[tuple[int, int]](), own()

    def work() -> int:
        begun.append((own(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        if len(begun) == 1:
            over.wait(60)  # it computes nothing, as if others took all
        return len(begun)

    assert run_aside(work, allowance=PriorityAllowance(0.001)) == 2
    over.set()
    (first, nice), (second, nicer) = begun
    assert first == second == usual and nicer > nice


@pytest.mark.skipif(sys.platform != "linux", reason="threads cannot give way")
def test_who_has_one_after_another_done_gets_the_rest_at_low_priority() -> None:
    clock = [100.0]
    allowance = PriorityAllowance(0.02, clock=lambda: clock[0])

    def lowered() -> bool:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            time.sleep(0.001)
            if own() == os.SCHED_IDLE:
                return True
        return False

    assert [run_aside(lowered, allowance=allowance) for _ in range(3)] == [True] * 3
    assert allowance.refill() == 0, "all of it was used by the first"
    clock[0] += 2
    assert allowance.refill() == pytest.approx(0.01), "it comes back with time"
    clock[0] += 1000
    assert allowance.refill() == pytest.approx(0.02), "and is no more than it was"
