"""Bias, bans and penalties: which tokens they touch and by how much."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from cutaway.core.errors import RequestError
from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.sampling.sampler import Sampler, stages_of

P, Q, OTHER = 0, 1, 2


def edited(logits: Tensor, *rows: SamplerRow) -> Tensor:
    candidates = Candidates(logits)
    for stage in stages_of(rows[0]):
        candidates = stage(candidates, rows)
    return candidates.logits


def spoken(prompt: list[int], output: list[int], **params: object) -> SamplerRow:
    return SamplerRow(
        params=SamplingParams(**params),  # pyright: ignore
        seed=1,
        position=len(prompt) + len(output),
        prompt_token_ids=prompt,
        output_token_ids=output,
    )


def test_c08_repetition_counts_prompt_and_output_once() -> None:
    row = spoken([P] * 5, [Q] * 3, repetition_penalty=1.2)
    logits = edited(torch.tensor([[2.0, -1.0, 0.5]]), row)
    assert logits[0].tolist() == pytest.approx([1.6667, -1.2, 0.5], abs=1e-4)


def test_c08_frequency_and_presence_count_the_output_only() -> None:
    row = spoken([P] * 5, [Q] * 3, frequency_penalty=0.5, presence_penalty=0.4)
    logits = edited(torch.tensor([[2.0, -1.0, 0.5]]), row)
    assert logits[0].tolist() == pytest.approx([2.0, -2.9, 0.5], abs=1e-6)


def test_c08_negative_penalties_raise_the_logit() -> None:
    row = spoken([], [Q, Q], frequency_penalty=-1.0, presence_penalty=-0.5)
    assert edited(torch.zeros(1, 3), row).tolist() == [[0.0, 2.5, 0.0]]
    for name in ("frequency_penalty", "presence_penalty"):
        with pytest.raises(RequestError, match=f"{name} is 2.1; it must be a number from -2 to 2"):
            spoken([], [], **{name: 2.1})


def test_c08_all_three_together() -> None:
    # Repetition first, then the amounts: (2 / 2) - (2 * 0.5 + 0.25).
    row = spoken([P], [Q, Q], repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    assert edited(torch.tensor([[2.0, 2.0, 2.0]]), row).tolist() == [[1.0, -0.25, 2.0]]


def test_c09_no_window_cuts_the_history() -> None:
    # Cutaway has no window parameter, so no end of the history can be the wrong one.
    row = spoken([0, 1, 2] + [4] * 5000, [3], repetition_penalty=2.0)
    assert edited(torch.ones(1, 6), row).tolist() == [[0.5, 0.5, 0.5, 0.5, 0.5, 1.0]]


def test_repetition_equals_the_processor_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 300, generator=generator) * 4
    history = torch.randint(0, 300, (4, 80), generator=generator)
    for penalty in (0.7, 1.3, 10.0):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(history, logits)
        rows = [spoken(ids[:50], ids[50:], repetition_penalty=penalty) for ids in history.tolist()]
        assert torch.equal(edited(logits, *rows), expected)


def test_a_tiny_repetition_penalty_does_not_break_the_row() -> None:
    row = spoken([0], [], temperature=0.0, repetition_penalty=1e-300)
    assert Sampler(2).sample(torch.tensor([[1.0, 5.0]]), [row])[0].token_id == 0


def test_rows_of_one_batch_have_their_own_history() -> None:
    logits = torch.ones(3, 4)
    rows = [spoken([], out, presence_penalty=1.0) for out in ([0], [1, 1, 2], [])]
    assert edited(logits, *rows).tolist() == [[0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]]


def test_c10_bias_moves_one_token() -> None:
    logits = torch.tensor([[1.0, 3.0, -50.0, 2.0]])
    greedy = {"temperature": 0.0}
    sampler = Sampler(4)

    def token(**params: object) -> int | None:
        return sampler.sample(logits, [spoken([], [], **greedy, **params)])[0].token_id

    assert token(logit_bias={}) == token(logit_bias=None) == 1
    assert token(logit_bias={2: 100}) == 2
    assert token(logit_bias={1: -100}) == 3
    for position in range(50):  # banned in practice when drawn as well
        row = SamplerRow(params=SamplingParams(logit_bias={1: -100}), seed=1, position=position)
        assert sampler.sample(logits, [row])[0].token_id != 1


@pytest.mark.parametrize("bias", [{"AI": -100}, {-1: 5}, {2: math.nan}, {2: 101}, {True: 1}])
def test_c10_a_bad_bias_is_refused_before_the_engine(bias: dict[object, float]) -> None:
    with pytest.raises(RequestError, match="logit_bias") as error:
        spoken([], [], logit_bias=bias)
    assert error.value.param is not None and error.value.param.startswith("logit_bias")


def test_b11_ends_are_banned_below_min_tokens() -> None:
    # The end is by far the likeliest; the engine bans it while the output is below min_tokens=4.
    logits = torch.tensor([[0.0, 1.0, 50.0]])
    for length in range(6):
        banned = {2, 999_999} if length < 4 else ()  # an id outside the vocabulary is harmless
        row = SamplerRow(
            params=SamplingParams(temperature=0.0, min_tokens=4),
            seed=1,
            position=length,
            output_token_ids=[0] * length,
            banned_token_ids=banned,
        )
        assert Sampler(3).sample(logits, [row])[0].token_id == (1 if length < 4 else 2)
        if length < 5:
            oracle = MinNewTokensLengthLogitsProcessor(0, 4, 2, device="cpu")
            expected = oracle(torch.zeros(1, length, dtype=torch.long), logits)
            assert torch.equal(edited(logits, row), expected)


def test_b11_a_ban_beats_a_bias() -> None:
    row = SamplerRow(
        params=SamplingParams(logit_bias={0: 100}), seed=1, position=0, banned_token_ids=(0,)
    )
    logits = torch.zeros(1, 2)
    assert edited(logits, row).tolist() == [[-math.inf, 0.0]]
    assert Sampler(2).sample(logits, [row])[0].token_id == 1
