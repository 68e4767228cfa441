"""Threads that affinity and control groups allow, read from a made-up machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cutaway.kernels import hardware, native
from cutaway.kernels.native import library


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="ascii")
    return root


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def siblings(per_core: int) -> dict[str, str]:
    """Eight CPUs, so many to a core."""
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": str(cpu // per_core)
        for cpu in range(8)
    }


def test_every_core_counts_once(tmp_path: Path) -> None:
    assert hardware.available_threads(tmp_path) == 8
    assert hardware.available_threads(machine(tmp_path, siblings(2))) == 4


def test_affinity_limits_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert hardware.available_threads(machine(tmp_path, siblings(2))) == 2


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        ({"proc/self/cgroup": "9:memory:/a\n2:cpu,cpuacct:/a"}, 8),
        (
            {
                "proc/self/cgroup": "9:memory:/a\n2:cpu,cpuacct:/a",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            },
            2,
        ),
    ],
)
def test_control_groups_limit_threads(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    assert hardware.available_threads(machine(tmp_path, files)) == threads


@pytest.mark.skipif(not native.is_available(), reason="native kernels are not built")
def test_bandwidth_and_instruction_sets_are_those_of_the_library() -> None:
    assert "portable" in hardware.instruction_sets()
    assert hardware.read_bandwidth(rounds=1) > 1e8


def test_bandwidth_is_that_of_as_many_bytes_as_a_model_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that a large cache holds says nothing of a model that it does not."""

    class Library:
        @staticmethod
        def cw_read_bandwidth(address: int, num_bytes: int, rounds: int) -> float:
            return float(num_bytes)

    monkeypatch.setattr(library, "library", Library)
    least = hardware.read_bandwidth()
    assert least >= 1 << 28 and hardware.read_bandwidth(num_bytes=1) == least
    assert hardware.read_bandwidth(num_bytes=int(least) + 4096) == least + 4096


@pytest.mark.parametrize("asked, most", [("1", 1), ("100000", None), ("0", None), ("x", None)])
def test_omp_num_threads_lowers_the_count_and_never_raises_it(
    monkeypatch: pytest.MonkeyPatch, asked: str, most: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert hardware.chosen_threads() == (most or hardware.available_threads())
