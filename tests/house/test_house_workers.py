"""Workers of the tests' run: all tests run once, in their order, a file's by one worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from by_file import MOST_TOGETHER, ByFile

QUICK = [f"tests/a/test_{name}.py::test_{n}" for name in "pqr" for n in range(4)]
SLOW = [f"tests/b/test_{name}.py::test_{n}" for name in "xyz" for n in range(3)]
MANY = [f"tests/b/test_many.py::test_{n}" for n in range(MOST_TOGETHER + 5)]


class Worker:
    """What a scheduler asks of a worker; the tests that it was sent."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """A run of tests by so many workers."""

    def __init__(self, pytestconfig: pytest.Config, test_ids: list[str], count: int) -> None:
        self.test_ids = test_ids
        self.scheduler: Any = ByFile(pytestconfig)
        self.scheduler.numnodes = count
        self.workers = [Worker(f"gw{n}") for n in range(count)]
        self.done: list[str] = []
        for worker in self.workers:
            self.scheduler.add_node(worker)
        for worker in self.workers:
            self.scheduler.add_node_collection(worker, test_ids)
        self.scheduler.schedule()

    def step(self, worker: Worker) -> None:
        """A worker does its next test, if it may: it knows another one, or that there is none."""
        pending = self.scheduler.node2pending[worker]
        if len(pending) >= 2 or (pending and worker.shutting_down):
            self.done.append(self.test_ids[pending[0]])
            self.scheduler.mark_test_complete(worker, pending[0])

    def finish(self, workers: list[Worker]) -> None:
        for _ in range(len(self.test_ids) + 1):
            for worker in workers:
                self.step(worker)
        assert self.scheduler.tests_finished


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> pytest.Config:
    """A configuration of a run by workers; how many, each test says."""
    monkeypatch.setattr("xdist.scheduler.load.parse_tx_spec_config", lambda config: [])
    return pytestconfig


def names(run: Run, worker: Worker) -> list[str]:
    return [run.test_ids[index] for index in worker.sent]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 40])
@pytest.mark.parametrize("test_ids", [QUICK + SLOW, QUICK[:1], QUICK[:3], MANY])
def test_every_test_runs_once(configured: pytest.Config, test_ids: list[str], count: int) -> None:
    run = Run(configured, test_ids, count)
    run.finish(run.workers)
    assert sorted(run.done) == sorted(test_ids)
    assert all(worker.shutting_down for worker in run.workers)


def test_who_is_done_takes_the_next_file(configured: pytest.Config) -> None:
    run = Run(configured, QUICK + SLOW, 2)
    first, second = run.workers
    assert names(run, first) == QUICK[:4] and names(run, second) == QUICK[4:8]
    for _ in range(3):
        run.step(second)
    assert names(run, second) == QUICK[4:] and names(run, first) == QUICK[:4]


def test_many_tests_of_a_file_are_shared(configured: pytest.Config) -> None:
    run = Run(configured, MANY + QUICK, 2)
    assert names(run, run.workers[0]) == MANY[:MOST_TOGETHER]
    assert names(run, run.workers[1]) == MANY[MOST_TOGETHER:]


def test_what_a_worker_that_dies_had_is_done_by_others(configured: pytest.Config) -> None:
    run = Run(configured, QUICK + SLOW, 2)
    dead, other = run.workers
    run.step(dead)
    assert run.scheduler.remove_node(dead) == QUICK[1]
    run.finish([other])
    assert sorted([*run.done, QUICK[1]]) == sorted(QUICK + SLOW)
