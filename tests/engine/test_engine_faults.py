"""A fault ends the one thing whose work raised: planted at calls of every place, and at every page.

CUTAWAY_FAULTS sets how many; `python bench/faults.py` plants 2,000, --memory every tensor.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cutaway.core.errors import CutawayError, OverloadedError, ReplayError
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.recorder import Recorder
from cutaway.engine.running import Running
from cutaway.replay.recorded_answers import verify_answer
from cutaway.trace.ledger import find_recorded
from planting import load_planting

NUM_FAULTS = int(os.environ.get("CUTAWAY_FAULTS", "180"))
planting = load_planting()


@pytest.mark.slow
def test_a_fault_anywhere_ends_one_thing_alone() -> None:
    totals = asyncio.run(planting.plant(NUM_FAULTS, seed=NUM_FAULTS))
    assert totals["faults"] == NUM_FAULTS and totals["places"] >= 75
    # Faults ended answers and looks, and most of them nothing: so they did fire.
    assert totals["fired"] >= 0.8 * NUM_FAULTS
    for what in ("an answer", "a look", "nothing"):
        assert totals[what] >= NUM_FAULTS // 20, totals


def test_memory_that_runs_out_ends_one_answer_alone() -> None:
    totals = planting.memory(most=12)
    assert totals["tensors"] >= 12 and totals["pages"] >= 5
    assert totals["pages, an answer ended"] > 0


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    settings = {"dtype": "float64", "cache_tokens": 1024, "page_size": 8}
    return build_engine(planting.config(tmp_path), EngineConfig.of(settings))


def asked(name: str, first: int = 20, **params: object) -> Request:
    values = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **params}
    ids = tuple(range(first, first + 20))
    return Request(request_id=name, prompt_token_ids=ids, params=SamplingParams(**values))


def run(engine: Engine) -> dict[str, list[Delta]]:
    news: dict[str, list[Delta]] = {}
    while engine.has_work:
        for delta in engine.step():
            news.setdefault(delta.request_id, []).append(delta)
    return news


def tokens(deltas: list[Delta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def beside(engine: Engine, count: int = 5) -> dict[str, list[int]]:
    """Tokens of answers, alone."""
    alone: dict[str, list[int]] = {}
    for number in range(count):
        engine.add(asked(f"n{number}", 10 * number))
        alone |= {name: tokens(deltas) for name, deltas in run(engine).items()}
    return alone


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception, name: str = "n2") -> None:
    """The rows of one answer cannot be made, ever."""
    rows = Running.rows

    def fails(self: Running, num_drafts: int) -> object:
        if self.sequence.request.request_id == name:
            raise error
        return rows(self, num_drafts)

    monkeypatch.setattr(Running, "rows", fails)


@pytest.mark.parametrize("error", [RuntimeError("x"), MemoryError(), RecursionError()])
def test_a_fault_that_stays_is_found_in_halves_and_ends_its_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    alone = beside(engine)
    broken(monkeypatch, error)
    for number in range(5):
        engine.add(asked(f"n{number}", 10 * number))
    news = run(engine)
    (last,) = news.pop("n2")
    kind = OverloadedError if isinstance(error, MemoryError) else CutawayError
    assert type(last.error) is kind and last.finish_reason == "error"
    assert {name: tokens(deltas) for name, deltas in news.items()} == {
        name: ids for name, ids in alone.items() if name != "n2"
    }
    assert engine.cache_stats.used == 0


def test_an_answer_of_a_step_that_raised_is_verified_as_any_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, RuntimeError())
    for number in range(5):
        engine.add(asked(f"n{number}", 10 * number))
    run(engine)
    monkeypatch.undo()
    for name in ("n0", "n4"):
        verdict = verify_answer(engine, find_recorded(engine.ledger, name, 0, owner=""))
        assert verdict.is_exact, verdict


def test_recording_switches_itself_off_and_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = beside(engine)
    whole = find_recorded(engine.ledger, "n0", 0, owner="")
    took, calls = Recorder.add_tokens, []

    def fails(self: Recorder, *arguments: object) -> None:
        calls.append(None)
        if len(calls) > 3:
            raise KeyError("the fourth")
        took(self, *arguments)

    monkeypatch.setattr(Recorder, "add_tokens", fails)
    engine.add(asked("cut", 10))
    cut = run(engine)["cut"]
    engine.add(asked("after", 10))
    assert tokens(run(engine)["after"]) == tokens(cut) == alone["n1"]
    assert len(calls) == 4, "nothing is recorded any more"
    for name in ("cut", "after"):
        with pytest.raises(ReplayError, match="recording raised and was switched off"):
            find_recorded(engine.ledger, name, 0, owner="")
    assert verify_answer(engine, whole).is_exact, "what was recorded before can still be run"
    said = capfd.readouterr().err
    assert said.count("recording raised") == 1 and "the fourth" not in said


def test_a_request_is_added_whole_or_not_at_all(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("AdmissionQueue.add", "WaitingQueue.add", "Recorder.open_answer"):
        planter = planting.Planter()
        with monkeypatch.context(), planter.everywhere():
            planter.arm(place, 1, MemoryError)
            try:
                engine.add(asked("half", n=3))
                is_in = True
            except MemoryError:
                is_in = False
        assert planter.has_fired and engine.has_work == is_in
        assert is_in == (place == "Recorder.open_answer")
        run(engine)
        assert not engine._answers and engine.cache_stats.used == 0
