"""A stage that somebody adds by the page docs/sampling.md acts everywhere, natively made or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import tiny
from cutaway import LLM
from cutaway.core import limits
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.replay.recorded_answers import verify_answer
from cutaway.sampling import sampler
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from engines import run


@dataclass(frozen=True)
class Params(SamplingParams):
    """The field that the page asks for."""

    top_a: float = 0.0


class TopA:
    """Drops what weighs less than a share of the largest weight."""

    name = "top_a"

    def is_neutral(self, row: SamplerRow) -> bool:
        return row.params.is_greedy or getattr(row.params, "top_a", 0.0) == 0

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        weights = candidates.weights
        shares = weights.new_tensor([[getattr(row.params, "top_a", 0.0)] for row in rows])
        floor = weights.amax(dim=-1, keepdim=True) * shares
        return Candidates(candidates.logits, weights * (weights >= floor))


@pytest.fixture(params=["auto", "float32"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Engine:
    """With the stage after min_p, as a newcomer adds it."""
    config = tiny.config(vocab_size=320, hidden_size=64, intermediate_size=96, head_dim=16)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert isinstance(limits.LIMITS, dict)
    monkeypatch.setitem(
        limits.LIMITS, "top_a", limits.Limit("float", 0.0, 0, 1, meaning="least share of weight")
    )
    at = [stage.name for stage in sampler.ORDER].index("min_p") + 1
    with_stage = (*sampler.ORDER[:at], TopA(), *sampler.ORDER[at:])
    monkeypatch.setattr(sampler, "ORDER", with_stage)
    return LLM(f"random:{tmp_path}/config.json", dtype=request.param, cache_tokens=2048).engine


def asked(name: str, **settings: float) -> Request:
    params = Params(seed=5, max_tokens=12, ignore_eos=True, logprobs=2, **settings)  # pyright: ignore[reportArgumentType]
    return Request(request_id=name, prompt_token_ids=tuple(range(20)), params=params)


def test_an_added_cut_acts_on_the_default_path_in_the_view_and_in_verify(engine: Engine) -> None:
    greedy = asked("greedy", temperature=0.0)
    # The heaviest token alone: so the draw is the greedy one.
    cut, uncut = asked("cut", temperature=2.0, top_a=1.0), asked("uncut", temperature=2.0)
    alone = run(engine, [uncut])["uncut", 0]
    answers = run(engine, [greedy, cut, replace(uncut, request_id="beside")])
    ids = {name: answer.token_ids for (name, _), answer in answers.items()}
    assert ids["cut"] == ids["greedy"] != ids["beside"]
    assert ids["beside"] == alone.token_ids, "its mates changed nothing"
    assert engine.ledger is not None
    for record in engine.ledger.answers:
        assert verify_answer(engine, record).is_exact
    record = next(each for each in engine.ledger.answers if each.request.request_id == "cut")
    payload = view_of("sampling").show(Look(engine, record).subject, Query(token=3)).payload
    effects = {effect.name: effect.num_kept for effect in payload.effects}
    assert effects["top_a"] == 1 < effects["temperature"]
    assert payload.is_same


def test_stages_in_another_order_than_the_native_one_are_not_forced_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(40, 500, generator=torch.Generator().manual_seed(1)) * 3
    rows = [
        SamplerRow(
            params=SamplingParams(temperature=2.0, min_p=0.2, top_p=0.9), seed=seed, position=4
        )
        for seed in range(40)
    ]
    first, temperature, *others = sampler.ORDER[3:]
    turned = (*sampler.ORDER[:3], first, *others, temperature)
    monkeypatch.setattr(sampler, "ORDER", turned)
    made = sampler.Sampler(500).sample(logits, rows)
    assert made == sampler.sample_plain(logits, rows)
    monkeypatch.undo()
    assert made != sampler.sample_plain(logits, rows), "the order plays no part in these rows"
