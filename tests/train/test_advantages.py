"""Advantages: worked values, answers that never touch one another, and groups with equal scores."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cutaway.train.rollouts.advantages import (
    compare_in_groups,
    estimate,
    explained_variance,
    token_rewards,
    whiten,
)


def tokens(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# T39: advantages or returns off by one; a value behind the end.
def test_t39_worked_values() -> None:
    found = estimate(tokens(0, 0, 1), tokens(0.5, 0.6, 0.7), lengths=[3])
    torch.testing.assert_close(found.advantages, tokens(0.46575, 0.385, 0.3))
    torch.testing.assert_close(found.returns, tokens(0.96575, 0.985, 1))


def test_t39_a_single_token_is_its_score_less_what_was_expected() -> None:
    found = estimate(tokens(2.0), tokens(0.5), lengths=[1])
    assert (float(found.advantages), float(found.returns)) == (1.5, 2.0)


def test_an_answer_that_was_cut_may_be_worth_something_behind_its_last_token() -> None:
    rewards, values = tokens(0, 0), tokens(0.5, 0.6)
    ended, cut = (
        estimate(rewards, values, lengths=[2], after=after).advantages for after in (None, [0.8])
    )
    torch.testing.assert_close(ended, tokens(0.1 + 0.95 * -0.6, -0.6))
    torch.testing.assert_close(cut, tokens(0.1 + 0.95 * 0.2, 0.2))


def test_decay_one_gives_returns_to_go_and_zero_one_step() -> None:
    rewards, values = tokens(1, 2, 4), tokens(0.5, 0.25, 0.125)
    far = estimate(rewards, values, lengths=[3], decay=1.0)
    torch.testing.assert_close(far.returns, tokens(7, 6, 4))
    near = estimate(rewards, values, lengths=[3], decay=0.0, discount=0.9)
    torch.testing.assert_close(near.returns, tokens(1 + 0.225, 2 + 0.1125, 4))


# T31: neighbours and padding enter returns. Nothing is padded here, so neighbours are left.
def test_t31_answers_do_not_touch_one_another() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 1, 5]
    rewards, values = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    whole = estimate(rewards, values, lengths=lengths)
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        alone = estimate(rewards[own], values[own], lengths=[length])
        assert torch.equal(alone.advantages, whole.advantages[own])
        assert torch.equal(alone.returns, whole.returns[own])
        start += length
    rewards[4:] = 1e30
    again = estimate(rewards, values, lengths=lengths)
    assert torch.equal(again.advantages[:4], whole.advantages[:4])


def test_naive_sums_say_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    found = estimate(rewards, values, lengths=[6], discount=0.9, decay=0.8)
    for t in range(6):
        expected = 0.0
        for k in range(t, 6):
            following = float(values[k + 1]) if k < 5 else 0.0
            surprise = float(rewards[k]) + 0.9 * following - float(values[k])
            expected += (0.9 * 0.8) ** (k - t) * surprise
        assert float(found.advantages[t]) == pytest.approx(expected)


def test_rewards_are_penalties_and_at_the_last_token_the_score() -> None:
    found = token_rewards([1.0, -2.0], tokens(0.1, 0.2, 0.3, 0.4), lengths=[3, 1], beta=0.5)
    torch.testing.assert_close(found, tokens(-0.05, -0.1, 1 - 0.15, -2 - 0.2))


def test_whitening_is_over_all_tokens() -> None:
    found = whiten(torch.randn(50, generator=torch.Generator().manual_seed(2)) * 3 + 7)
    assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1, abs=1e-6)
    assert whiten(tokens(3.0)).tolist() == [0.0]
    assert whiten(tokens(2.0, 2.0)).tolist() == [0.0, 0.0]


# T40: a group's deviation of nearly 0 blows advantages up; the deviation of the batch is taken.
def test_t40_worked_values_of_groups() -> None:
    found = compare_in_groups(tokens(0, 0, 1, 1, 5, 5, 5, 5), size=4)
    torch.testing.assert_close(
        found.advantages, tokens(*[-0.865875] * 2, *[0.865875] * 2, 0, 0, 0, 0), atol=1e-6, rtol=0
    )
    assert found.num_equal == 1


def test_t40_rounding_is_no_advantage() -> None:
    scores = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.3], dtype=torch.float64)
    assert float(scores.std()) > 0
    found = compare_in_groups(scores, size=4)
    assert found.advantages.tolist() == [0.0] * 4
    assert found.num_equal == 1


def test_groups_without_scale_keep_how_far_scores_are_apart() -> None:
    found = compare_in_groups(tokens(0, 4, 10, 10), size=2, is_scaled=False)
    assert found.advantages.tolist() == [-2, 2, 0, 0]


def test_explained_variance() -> None:
    returns = tokens(1, 2, 3, 4)
    assert explained_variance(returns, returns) == 1
    assert explained_variance(tokens(0, 0, 0, 0), returns) == pytest.approx(0)
    assert explained_variance(returns, tokens(2, 2, 2, 2)) == 0
    assert math.isfinite(explained_variance(tokens(1), tokens(1)))
