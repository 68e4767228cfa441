"""`cutaway doctor`: what it finds here, and what it says of machines that are not here."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from cutaway.cli import doctor, environment
from program import Cutaway

SECTIONS = ["versions", "extras", "system", "memory", "torch", "models", "environment", "problems"]


@pytest.fixture
def report() -> Any:
    """Of this machine, as if its torch were built for a CPU: else a hidden GPU is a problem."""
    found = copy.deepcopy(doctor.gather())
    found["torch"]["cuda_build"] = None
    return found


def problems(report: Any) -> str:
    return "\n".join(each.problem for each in doctor.find_problems(report))


def test_the_report_is_one_object(cutaway: Cutaway) -> None:
    ended = cutaway("doctor", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert list(ended.json) == SECTIONS
    assert ended.json["torch"]["version"].startswith(ended.json["versions"]["torch"][:4])
    assert 0 < ended.json["system"]["usable_cores"] <= ended.json["system"]["cores"]


def test_the_report_is_readable(cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # one hides every GPU so
    ended = cutaway("doctor")
    assert ended.code == 0
    assert [line for line in ended.out.splitlines() if line[0] != " "] == SECTIONS[:-1]
    assert all(
        len(line.split(maxsplit=1)) == 2 for line in ended.out.splitlines() if line[0] == " "
    )
    assert "CUDA_VISIBLE_DEVICES empty" in ended.out


def test_variables_that_may_hold_secrets_are_left_out(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("CUTAWAY_SYSTEM", "a private instruction")
    ended = cutaway("doctor", "--json")
    assert "secret" not in ended.out
    assert "private" not in ended.out


def test_a_torch_that_cannot_be_imported_stops_cutaway(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> environment.ReportSection:
        raise OSError("libtorch.so: cannot open shared object file")

    monkeypatch.setattr(environment, "torch_report", broken)
    ended = cutaway("doctor")
    assert ended.code == 1
    assert "error: torch cannot be imported: OSError: libtorch.so" in ended.err
    assert "hint: install torch anew" in ended.err


@pytest.mark.parametrize(
    ("section", "changes", "problem"),
    [
        ("torch", {"cuda_build": "13.0", "gpus": []}, "built for CUDA and sees no GPU"),
        ("torch", {"threads": 64}, "torch uses 64 threads on"),
        ("memory", {"available_bytes": 2**29}, "only 512.0 MiB of memory are free"),
        ("memory", {"limit_bytes": 2**28}, "only 256.0 MiB of memory are free"),
        ("models", {"is_writable": False}, "models cannot be kept in"),
        ("extras", {"chat": None}, "prompt-toolkit is not installed"),
    ],
)
def test_what_goes_wrong_on_other_machines_is_known(
    report: Any, section: str, changes: dict[str, object], problem: str
) -> None:
    assert problem not in problems(report)
    report[section].update(changes)
    assert problem in problems(report)
    assert not any(each.stops for each in doctor.find_problems(report))


def test_affinity_counts_more_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert environment.usable_cores() <= 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}, 8),
        ({}, 8),
    ],
)
def test_quotas_of_both_kinds_of_control_group_count(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: float
) -> None:
    def read_text(path: Path, encoding: str | None = None) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", read_text)
    assert environment.usable_cores() == cores
