"""Unseeded answers with guesses have the exact distribution: chi-square, with seeds fixed here.

`PYTHONPATH=src:tests python bench/drafted.py --workloads 0` has 200,000 answers of each drafter.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from cutaway.engine.drafting import Drafting
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.sampling.rejection import Guessed, Proposal
from cutaway.sampling.sampler import Sampled
from engines import loaded

NUM_ANSWERS = 1000


@pytest.fixture(scope="module")
def drafted() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "drafted.py"
    spec = importlib.util.spec_from_file_location("drafted", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded()


@pytest.mark.parametrize("name", ["model, nearly right", "model, mostly wrong", "early layer"])
def test_a_small_models_guesses_keep_the_distribution(
    drafted: ModuleType, model: LoadedModel, name: str
) -> None:
    drafter = drafted.of_model(drafted.small_models(model)[name], 600)
    assert drafted.judge(model, name, Drafting.of(drafter), NUM_ANSWERS, 1) > 0.001
    assert drafter.cache_stats.used == 0


class _AlwaysFirst:
    """A rule that lets every guess stand: what the test would have to find."""

    def __call__(self, sampled: list[int], drafts: list[int]) -> list[int]:
        return [*drafts, sampled[-1]]


def _keep_all(logits: object, rows: object, guessed: Sequence[Guessed]) -> list[list[Sampled]]:
    """The same of guesses that were drawn: whatever p and q say."""
    return [[*map(_stand, each.drawn, each.proposals), each.drawn[-1]] for each in guessed]


def _stand(drawn: Sampled, proposal: Proposal) -> Sampled:
    return drawn._replace(token_id=proposal.token_id)


@pytest.mark.parametrize("is_drawn", [False, True])
def test_guesses_that_stand_though_another_was_drawn_are_found(
    drafted: ModuleType, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, is_drawn: bool
) -> None:
    monkeypatch.setattr("cutaway.engine.engine.accept", _AlwaysFirst())
    monkeypatch.setattr("cutaway.engine.draws.verify", _keep_all)
    drafter = drafted.of_model(drafted.small_models(model)["model, nearly right"], 600)
    made = drafter if is_drawn else drafted.Wild(1)
    try:
        told = drafted.judge(model, "wrong", Drafting.of(made), NUM_ANSWERS, 1)
    except AssertionError as found:
        assert "a token came that may not" in str(found)
    else:
        assert told < 0.001
