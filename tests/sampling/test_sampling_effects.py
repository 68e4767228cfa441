"""The trace of one row: the sampler's own stages and draw, with what each removed."""

from __future__ import annotations

import math

import pytest
import torch

from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import DrawOutcome, outcomes, trace
from cutaway.sampling.sampler import ORDER, Sampler


def test_trace_gives_the_very_token_of_the_sampler() -> None:
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 3
    for position in range(30):
        params = SamplingParams(temperature=0.8, min_p=0.001, top_k=50, top_p=0.9)
        row = SamplerRow(params=params, seed=4, position=position)
        traced = trace(logits, row).draw
        sampled = Sampler(2000).sample(logits[None], [row])[0]
        assert traced is not None
        assert (traced.token_id, traced.u) == (sampled.token_id, sampled.u)
        assert traced.target == traced.u * traced.total >> 32 < traced.cumulative
        assert traced.cumulative - traced.weight <= traced.target


def test_outcomes_are_the_ends_of_traces() -> None:
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * 3
    logits[7] = logits[9] = logits.max() + 1  # equals: the smaller id first
    settings = (
        *({}, {"temperature": 0.0}, {"temperature": 1.5}, {"top_k": 40}, {"top_p": 0.9}),
        *({"min_p": 0.05}, {"repetition_penalty": 1.3}, {"temperature": 0.0, "top_p": 0.5}),
    )
    rows = [
        SamplerRow(params=SamplingParams(**each), seed=3, position=at, output_token_ids=[7, 8])
        for at, each in enumerate(settings)
    ]
    for row, found in zip(rows, outcomes(logits, rows), strict=True):
        traced = trace(logits, row)
        last, drawn = traced.effects[-1], traced.draw
        if drawn is None:
            assert found == DrawOutcome(last.top_token_id, last.top_probability, 1)
        else:
            share = drawn.weight / drawn.total
            assert found == DrawOutcome(drawn.token_id, share, last.num_kept)
    assert len({each.token_id for each in outcomes(logits, rows)}) > 2
    watched = (7, 9, 8, 2999)
    for row, found in zip(rows, outcomes(logits, rows, watched=watched), strict=True):
        last = trace(logits, row, watched=watched).effects[-1]
        if row.params.is_greedy:
            assert found.watched == tuple(float(each == last.top_token_id) for each in watched)
        else:
            assert found.watched == pytest.approx(last.watched, rel=1e-12)


def test_l6_each_stage_reports_what_it_left() -> None:
    logits = torch.tensor([math.log(p) for p in (0.4, 0.3, 0.15, 0.1, 0.05)])
    params = SamplingParams(min_p=0.2, top_k=3, top_p=0.8)
    effects = trace(logits, SamplerRow(params=params, seed=1, position=1)).effects
    assert [effect.name for effect in effects] == ["logits", "min_p", "top_k", "top_p"]
    assert [effect.num_kept for effect in effects] == [5, 4, 3, 2]
    masses = [effect.kept_mass for effect in effects]
    assert masses == pytest.approx([1, 0.95, 0.85 / 0.95, 0.7 / 0.85], abs=1e-6)
    tops = [effect.top_probability for effect in effects]
    assert tops == pytest.approx([0.4, 0.4 / 0.95, 0.4 / 0.85, 0.4 / 0.7], abs=1e-6)
    assert effects[0].total == pytest.approx(2**30 / 0.4, rel=1e-6)


def test_l6_a_watched_token_is_followed_through_every_stage() -> None:
    logits = torch.tensor([math.log(p) for p in (0.4, 0.3, 0.15, 0.1, 0.05)])
    params = SamplingParams(min_p=0.2, top_k=3, top_p=0.8)
    effects = trace(logits, SamplerRow(params=params, seed=1, position=1), watched=(1, 2)).effects
    assert [effect.watched for effect in effects] == [
        pytest.approx(shares, abs=1e-6)
        for shares in (
            (0.3, 0.15),
            (0.3 / 0.95, 0.15 / 0.95),
            (0.3 / 0.85, 0.15 / 0.85),
            (3 / 7, 0),
        )
    ]


def test_temperature_and_bias_appear_as_edits() -> None:
    row = SamplerRow(
        params=SamplingParams(temperature=0.5, logit_bias={2: 9.0}),
        seed=1,
        position=1,
        banned_token_ids=(0,),
    )
    effects = trace(torch.tensor([3.0, 2.0, 1.0]), row).effects
    assert [effect.name for effect in effects] == ["logits", "logit_bias", "bans", "temperature"]
    assert [effect.num_kept for effect in effects] == [3, 3, 2, 2]
    assert [effect.top_token_id for effect in effects] == [0, 2, 2, 2]
    assert all(effect.kept_mass == 1 for effect in effects)


def test_l1_greedy_has_no_draw() -> None:
    params = SamplingParams(temperature=0.0, top_k=3, top_p=0.5, min_p=0.5)
    traced = trace(torch.tensor([3.0, 2.0, 5.0]), SamplerRow(params=params, seed=1, position=1))
    assert traced.draw is None
    assert [effect.name for effect in traced.effects] == ["logits"]
    assert traced.effects[-1].top_token_id == 2


def test_c05_the_order_is_the_documented_one() -> None:
    assert [stage.name for stage in ORDER] == [
        "grammar",
        "logit_bias",
        "bans",
        "penalties",
        "temperature",
        "min_p",
        "top_k",
        "top_p",
    ]
