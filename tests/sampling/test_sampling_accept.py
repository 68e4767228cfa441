"""Verification of drafts: the same tokens, settings and logprobs as plain decoding."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from cutaway.core.request import SamplingParams
from cutaway.sampling.accept import accept
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.sampler import Sampled, Sampler

VOCAB_SIZE = 40
PROMPT = [1, 2, 3, 2, 1]


def test_drafts_stand_up_to_the_first_that_differs() -> None:
    assert accept([5, 6, 7], [5, 6]) == [5, 6, 7]
    assert accept([5, 6, 7], [5, 9]) == [5, 6]
    assert accept([5, 6, 7], [9, 6]) == [5]
    assert accept([5], []) == [5]
    with pytest.raises(AssertionError, match="2 drafts need one row more, found 2"):
        accept([5, 6], [5, 6])


def model(history: list[int]) -> torch.Tensor:
    """A scripted model that likes to repeat what followed the last token before."""
    generator = torch.Generator().manual_seed(hash(tuple(history[-2:])) % 2**31)
    logits = torch.randn(VOCAB_SIZE, generator=generator)
    for before, after in pairwise(history):
        if before == history[-1]:
            logits[after] += 3.0
    return logits


def row_for(params: SamplingParams, output: list[int]) -> SamplerRow:
    return SamplerRow(
        params=params,
        seed=11,
        position=len(PROMPT) + len(output),
        prompt_token_ids=PROMPT,
        output_token_ids=output,
        num_logprobs=3,
    )


def plain(params: SamplingParams, length: int) -> list[Sampled]:
    sampler, output, results = Sampler(VOCAB_SIZE), [], []
    while len(output) < length:
        [sampled] = sampler.sample(model(PROMPT + output)[None], [row_for(params, output)])
        results.append(sampled)
        output.append(sampled.token_id)
    return results


def speculative(
    params: SamplingParams, length: int, propose: Callable[[list[int]], list[int]]
) -> tuple[list[Sampled], int]:
    """The same answer by verifying drafts, and the number of steps that it took."""
    sampler, output, results, num_steps = Sampler(VOCAB_SIZE), [], [], 0
    while len(output) < length:
        drafts = propose(PROMPT + output)
        histories = [output + drafts[:j] for j in range(len(drafts) + 1)]
        logits = torch.stack([model(PROMPT + history) for history in histories])
        sampled = sampler.sample(logits, [row_for(params, history) for history in histories])
        emitted = accept([s.token_id for s in sampled], drafts)
        results += sampled[: len(emitted)]
        output += emitted
        num_steps += 1
    return results[:length], num_steps


def repeat_last(history: list[int]) -> list[int]:
    """The three tokens that followed the last token before, as an n-gram drafter proposes."""
    for i in range(len(history) - 2, -1, -1):
        if history[i] == history[-1]:
            return history[i + 1 : i + 4]
    return []


def nonsense(history: list[int]) -> list[int]:
    return random.Random(len(history)).choices(range(VOCAB_SIZE), k=4)


SETTINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.5),
    SamplingParams(logit_bias={4: 3.0, 5: -100.0}),
    SamplingParams(temperature=1.5, top_k=8, min_p=0.01),
    # F06: counts at draft position j are those of output and the accepted drafts before j.
    SamplingParams(temperature=0.0, frequency_penalty=1.0, repetition_penalty=1.3),
    SamplingParams(presence_penalty=0.5, repetition_penalty=1.1),
)


@pytest.mark.parametrize("params", SETTINGS)
def test_f02_f05_f06_speculation_equals_plain_decoding(params: SamplingParams) -> None:
    expected = plain(params, 40)
    # Ids, random numbers, logprobs and alternatives: all equal, one entry per emitted token.
    assert speculative(params, 40, nonsense)[0] == expected
    results, num_steps = speculative(params, 40, repeat_last)
    assert results == expected
    assert num_steps < 40  # some drafts were accepted, so the comparison means something


def test_a_perfect_drafter_takes_a_step_per_five_tokens() -> None:
    params = SamplingParams(temperature=0.9)
    ids = [s.token_id for s in plain(params, 44)]

    def perfect(history: list[int]) -> list[int]:
        done = len(history) - len(PROMPT)
        return ids[done : done + 4]

    results, num_steps = speculative(params, 40, perfect)
    assert [s.token_id for s in results] == ids[:40] and num_steps == 8


def test_f01_a_fixed_draft_keeps_the_distribution() -> None:
    # p = (.6, .3, .1), draft token 1: accepted with p(1) = 0.3, else the residual (6/7, 0, 1/7).
    num_draws = 20_000
    logits = torch.tensor([0.6, 0.3, 0.1]).log().expand(num_draws, -1)
    rows = [SamplerRow(params=SamplingParams(), seed=5, position=i) for i in range(num_draws)]
    first = [s.token_id for s in Sampler(3).sample(logits, rows)]
    emitted = [accept([token, 0], [1]) for token in first]
    accepted = [tokens for tokens in emitted if len(tokens) == 2]
    rejected = [tokens[0] for tokens in emitted if len(tokens) == 1]
    # Each bound is 4 standard deviations; the seed is fixed.
    assert abs(len(accepted) / num_draws - 0.3) < 0.013
    assert 1 not in rejected
    assert abs(rejected.count(0) / len(rejected) - 0.857143) < 0.012
    marginals = [sum(tokens[0] == t for tokens in emitted) / num_draws for t in range(3)]
    statistic = sum(
        num_draws * (got - p) ** 2 / p for got, p in zip(marginals, (0.6, 0.3, 0.1), strict=True)
    )
    assert statistic < 13.8  # the 0.999 quantile for 2 degrees of freedom
