"""Steps that are broken off for who comes: soon, to the same tokens, and never without end."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import tiny
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission.shares import share_beside
from cutaway.engine.breaks import Breaks
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.scheduler import Scheduled
from cutaway.kernels import capture
from cutaway.kernels.native import library, program
from cutaway.weights.find.find import find
from engines import engine

pytestmark = pytest.mark.skipif(
    not capture.is_available() or not library.runs_parts(library.library()),
    reason="the native kernels are not built, or before they ran in parts: run `make native`",
)


@pytest.fixture
def target(tmp_path: Path) -> Engine:
    config = tmp_path / "config.json"
    shape = tiny.config(num_hidden_layers=6, max_position_embeddings=2048)
    config.write_text(json.dumps(shape), encoding="utf-8")
    settings = EngineConfig(device="cpu", dtype="auto")
    return engine(
        load_model(find(f"random:{config}"), settings), num_pages=2000, prefix_cache=False
    )


def request(name: str, owner: str, *, length: int = 20, tokens: int = 6) -> Request:
    prompt = tuple((7 * i + len(name) * length) % 250 for i in range(length))
    params = SamplingParams(max_tokens=tokens, seed=3, temperature=0.7, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=prompt, params=params, owner=owner)


def crowd(target: Engine, num: int = 24) -> None:
    for number in range(num):
        target.add(request(f"alice {number}", "alice", length=20 + number))


def take(target: Engine, said: dict[str, list[int]]) -> None:
    """One step, and what it says."""
    for delta in target.step():
        assert delta.error is None
        said.setdefault(delta.request_id, []).extend(delta.token_ids)


def finish(target: Engine, said: dict[str, list[int]]) -> dict[str, list[int]]:
    while target.has_work:
        take(target, said)
    assert target.cache_stats.used == 0
    return said


def come_at(target: Engine, owner: str, look: int) -> Callable[[], bool]:
    """What is asked during steps: somebody comes before one of the questions."""
    breaks, looks = target.breaks, count()

    def is_wanted() -> bool:
        if next(looks) == look:
            breaks.come(owner)
        return Breaks.is_wanted(breaks)

    return is_wanted


def test_a_step_that_is_broken_off_at_any_operation_changes_no_token(
    target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_PART", 1)
    crowd(target)
    wanted = finish(target, {})
    num_parts = len(target.runner._native._tape._program.operations)
    places = [*range(0, num_parts, 11), num_parts - 1]
    for look in (*places, *(5 * num_parts + each for each in places)):
        said: dict[str, list[int]] = {}
        before = target.breaks.num_broken
        monkeypatch.setattr(target.breaks, "is_wanted", come_at(target, "bob", look))
        crowd(target)
        while target.breaks.num_broken == before:
            take(target, said)
        target.breaks.arrive()
        assert finish(target, said) == wanted
        assert target.breaks.num_broken == before + 1


def test_between_two_looks_a_long_step_has_fewer_operations_to_the_same_tokens(
    target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd(target)
    wanted = finish(target, {})
    monkeypatch.setattr(program, "_PART_TOKENS", 16)
    parts: list[tuple[int, int]] = []
    native = library.library()

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return run_part if name == "cw_program_run_part" else getattr(native, name)

    def run_part(handle: Any, step: Any, first: int, count: int) -> Any:
        parts.append((step._obj.num_tokens, count))
        return native.cw_program_run_part(handle, step, first, count)

    monkeypatch.setattr(program, "library", Counted)
    crowd(target)
    assert finish(target, {}) == wanted
    longest = max(tokens for tokens, _ in parts)
    assert longest >= 128 and {count for tokens, count in parts if tokens == longest} == {1}
    assert max(count for _, count in parts) > 1, "short steps have longer parts"
    assert all(tokens * count <= 8 * 16 or count == 1 for tokens, count in parts)


def test_no_two_steps_in_a_row_are_broken_off(target: Engine) -> None:
    crowd(target, 8)
    target.breaks.come("bob")  # and is not taken in
    finish(target, {})
    assert target.breaks.num_broken > 2, "it was wanted all the while"
    assert target.num_steps >= target.breaks.num_broken - 1


def test_only_steps_of_a_crowd_are_broken_off_and_for_others_alone(target: Engine) -> None:
    crowd(target, 8)
    target.breaks.come("alice")
    finish(target, {})
    assert target.breaks.num_broken == 0, "one of the crowd waits for its step"
    target.breaks.arrive()
    target.breaks.come("bob")
    for number in range(12):
        target.add(request(f"one {number}", f"owner {number}"))
    finish(target, {})
    assert target.breaks.num_broken == 0, "who has one answer has no crowd"
    target.breaks.arrive()


def test_beside_a_crowd_a_newcomer_is_in_the_next_step_whatever_step_runs(
    target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: tokens of others between its coming and its first token."""
    crowd(target, 40)
    said: dict[str, list[int]] = {}
    for _ in range(4):
        take(target, said)
    monkeypatch.setattr(target.breaks, "is_wanted", come_at(target, "bob", 1))
    ahead: list[int] = []

    def counted(plan: Callable[[], list[Scheduled]] = target.scheduler.schedule) -> list[Scheduled]:
        steps = plan()
        ahead.append(sum(s.count for s in steps if s.sequence.owner == "alice"))
        return steps

    monkeypatch.setattr(target.scheduler, "schedule", counted)
    before = {s: s.num_computed_tokens for s in target.scheduler.running}
    take(target, said)
    assert target.breaks.num_broken == 1 and ahead[0] > 100
    assert all(s.num_computed_tokens == num for s, num in before.items()), "it was not counted"
    target.breaks.arrive()
    target.add(request("bob", "bob", length=30))
    take(target, said)
    assert len(said["bob"]) == 1 and ahead[1] <= share_beside(30)
    while len(said["bob"]) < 6:
        take(target, said)
        assert ahead[-1] <= 32, "while others come a crowd's steps are short"
    finish(target, said)
