"""Reported log-probabilities: raw, float32, and consistent with the greedy token."""

from __future__ import annotations

import math

import pytest
import torch

from cutaway.core.errors import RequestError
from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.logprobs import Score, prompt_logprobs
from cutaway.sampling.sampler import Sampler


def scored(logits: torch.Tensor, num_logprobs: int | None, **params: object) -> Score:
    row = SamplerRow(
        params=SamplingParams(**params),  # pyright: ignore
        seed=1,
        position=3,
        prompt_token_ids=(0, 1),
        output_token_ids=(1,),
        num_logprobs=num_logprobs,
    )
    return Sampler(logits.shape[-1]).sample(logits[None], [row])[0].score


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_c07_logprobs_are_of_the_raw_logits_at_every_temperature(temperature: float) -> None:
    score = scored(torch.tensor([2.0, 1.0, 0.0]), 3, temperature=temperature)
    assert [token for token, _ in score.top] == [0, 1, 2]
    raw = [-0.4076, -1.4076, -2.4076]
    assert [logprob for _, logprob in score.top] == pytest.approx(raw, abs=1e-4)


def test_c07_bias_penalties_and_cuts_do_not_move_logprobs() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    plain = scored(logits, 3)
    edits = {"logit_bias": {0: -50}, "repetition_penalty": 3.0, "frequency_penalty": 2.0}
    for params in (edits, {"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}):
        assert scored(logits, 3, **params).top == plain.top


def test_the_first_alternative_equals_the_greedy_token_exactly() -> None:
    logits = torch.randn(200, 3000, generator=torch.Generator().manual_seed(0)) * 5
    for row in logits:
        score = scored(row, 5, temperature=0.0)
        assert score.rank == 1
        assert score.top[0] == (int(row.argmax()), score.logprob)
        assert score.logprob <= 0


def test_logprobs_agree_with_log_softmax() -> None:
    logits = torch.randn(20, 50_257, generator=torch.Generator().manual_seed(1)) * 3
    for row in logits:
        score = scored(row, 20)
        expected = row.double().log_softmax(-1)
        values, ids = expected.topk(20)
        assert [token for token, _ in score.top] == ids.tolist()
        assert [logprob for _, logprob in score.top] == pytest.approx(values.tolist(), abs=4e-6)
        assert score.logsumexp == pytest.approx(row.double().logsumexp(-1).item(), abs=4e-6)


def test_alternatives_of_equal_logit_come_by_smaller_id() -> None:
    assert [token for token, _ in scored(torch.zeros(500), 4).top] == [0, 1, 2, 3]


def test_rank_counts_larger_logits() -> None:
    logits = torch.tensor([[4.0, 1.0, 3.0, 1.0]] * 4)
    ranks = [score.rank for score in prompt_logprobs(logits, [0, 1, 2, 3], num_logprobs=0)]
    assert ranks == [1, 3, 2, 3]


def test_nothing_is_computed_that_was_not_asked_for() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert scored(logits, None).rank is None and scored(logits, None).top == ()
    assert scored(logits, 0).rank is not None and scored(logits, 0).top == ()
    assert len(scored(logits, 20).top) == 3  # the vocabulary has no more


def test_c14_prompt_logprobs_score_the_next_token_of_each_row() -> None:
    prompt = [3, 1, 4, 1, 5]
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(2))
    # Row i predicts prompt[i + 1]; the first id has no prediction, the last row none to score.
    scores = prompt_logprobs(logits[:-1], prompt[1:], num_logprobs=2)
    expected = logits.double().log_softmax(-1)
    assert len(scores) == 4
    for i, score in enumerate(scores):
        assert score.logprob == pytest.approx(expected[i, prompt[i + 1]].item(), abs=1e-6)
        assert score.top[0][0] == int(logits[i].argmax())


def test_c14_prompt_logprobs_are_the_same_for_any_chunk() -> None:
    logits = torch.randn(70, 3001, generator=torch.Generator().manual_seed(3))
    ids = torch.randint(0, 3001, (70,), generator=torch.Generator().manual_seed(4)).tolist()
    before = logits.clone()
    whole = prompt_logprobs(logits, ids, num_logprobs=3)
    for size in (1, 7, 64):
        parts = [
            prompt_logprobs(logits[i : i + size], ids[i : i + size], num_logprobs=3)
            for i in range(0, 70, size)
        ]
        assert [score for part in parts for score in part] == whole
    assert torch.equal(logits, before)
    assert prompt_logprobs(logits[:0], [], num_logprobs=3) == []


def test_prompt_logprobs_of_a_bad_row_are_bad_alone() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    scores = prompt_logprobs(logits, [0, 0, 0], num_logprobs=1)
    assert [score.is_bad for score in scores] == [False, True, False]


def test_d03_scoring_needs_no_sampled_token() -> None:
    # max_tokens=0 is allowed only to score a prompt; the scores then come from prompt_logprobs.
    assert SamplingParams(max_tokens=0, prompt_logprobs=1).max_tokens == 0
    with pytest.raises(RequestError, match="max_tokens is 0") as error:
        SamplingParams(max_tokens=0)
    assert error.value.param == "max_tokens"
    assert prompt_logprobs(torch.zeros(2, 4), [0, 3], num_logprobs=1)[1].logprob == pytest.approx(
        math.log(0.25)
    )
