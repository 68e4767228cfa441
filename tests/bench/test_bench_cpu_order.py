"""`cutaway bench cpu` makes its files before it measures, and never loses cases that are done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutaway.bench import cpu
from cutaway.bench.peers.peer_process import PeerError
from cutaway.core.errors import ConfigError


class Sides:
    """Sides that load nothing."""

    versions: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def measured(monkeypatch: pytest.MonkeyPatch, measure: Any) -> cpu.CpuReport:
    monkeypatch.setattr(cpu, "_Sides", Sides)
    monkeypatch.setattr(cpu, "_measure", measure)
    monkeypatch.setattr(cpu, "_measure_start", lambda *_: None)
    models = ("q4_1", "q4_0")
    return cpu.run(rounds=2, threads=1, python="python", models=models)


def test_a_file_that_cannot_be_made_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent() -> Path:
        raise ConfigError("the package gguf is not here")

    made = {"q4_1": lambda: Path("a"), "q4_0": absent}
    monkeypatch.setattr(cpu, "MODELS", made)
    done: list[str] = []
    with pytest.raises(ConfigError, match="gguf is not here"):
        measured(monkeypatch, lambda case, *_: done.append(case.name) or [])
    assert not done


@pytest.mark.parametrize("fault", [PeerError("it broke"), OSError("full"), KeyboardInterrupt()])
def test_cases_that_are_done_stay_whatever_ends_it(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    monkeypatch.setattr(cpu, "MODELS", {"q4_1": lambda: Path("a"), "q4_0": lambda: Path("b")})

    def measure(case: cpu.Case, _: Any, __: int, ___: int, report: cpu.CpuReport) -> list[float]:
        if case.model == "q4_0":
            raise fault
        report.rows.append(cpu.CpuRow(case.name, 1.0))
        return [2.0]

    report = measured(monkeypatch, measure)
    assert len(report.rows) == 2 and not report.is_whole and report.bandwidth == 2.0
    is_fault = not isinstance(fault, KeyboardInterrupt)
    assert report.fault == (str(fault) if is_fault else None)
