"""Losses of pairs: worked values and gradients. Beside those of TRL: test_against_trl.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cutaway.train.losses.pair_losses import (
    PAIR_LOSSES,
    PairLogprobs,
    PairSettings,
    bradley_terry,
)

# A chosen answer of 3 tokens that gained 4 nats and a rejected one of 2 that lost 2.
WORKED = PairLogprobs(
    chosen=torch.tensor([-6.0], dtype=torch.float64),
    rejected=torch.tensor([-9.0], dtype=torch.float64),
    reference_chosen=torch.tensor([-10.0], dtype=torch.float64),
    reference_rejected=torch.tensor([-7.0], dtype=torch.float64),
    chosen_lengths=torch.tensor([1.0], dtype=torch.float64),
    rejected_lengths=torch.tensor([1.0], dtype=torch.float64),
)


def random_pairs(seed: int = 0, count: int = 7, dtype: torch.dtype = torch.float64) -> PairLogprobs:
    generator = torch.Generator().manual_seed(seed)

    def sums() -> Tensor:
        return -20 * torch.rand(count, generator=generator, dtype=dtype)

    def lengths() -> Tensor:
        return torch.randint(1, 12, (count,), generator=generator).to(dtype)

    return PairLogprobs(sums(), sums(), sums(), sums(), lengths(), lengths())


def mean(name: str, pairs: PairLogprobs, **settings: float) -> float:
    loss = PAIR_LOSSES[name](pairs, PairSettings(**settings))
    return float(loss.total / loss.count)


# T26: sums where sums belong and means where means belong.
@pytest.mark.parametrize(
    ("name", "smoothing", "expected"),
    [
        ("sigmoid", 0.0, 0.437488),
        ("hinge", 0.0, 0.4),
        ("ipo", 0.0, 1.0),
        ("sigmoid", 0.1, 0.497488),
        ("robust", 0.1, 0.362488),
        ("length_normalised", 0.0, 0.437488),
        ("rpo", 0.0, 0.437488 + 6.0),
    ],
)
def test_t26_worked_values_at_a_margin_of_six(name: str, smoothing: float, expected: float) -> None:
    assert float(WORKED.margin) == 6
    assert mean(name, WORKED, smoothing=smoothing) == pytest.approx(expected, abs=1e-6)


def test_t26_only_ipo_length_normalised_and_the_likelihood_of_rpo_divide_by_lengths() -> None:
    longer = replace(
        WORKED,
        chosen_lengths=WORKED.chosen_lengths * 4,
        rejected_lengths=WORKED.rejected_lengths * 2,
    )
    changed = {name for name in PAIR_LOSSES if mean(name, WORKED) != mean(name, longer)}
    assert changed == {"ipo", "length_normalised", "rpo"}
    assert float(longer.mean_margin) == 4 / 4 + 2 / 2
    assert mean("ipo", longer) == pytest.approx((2 - 5) ** 2)
    assert mean("rpo", longer) == pytest.approx(0.437488 + 6 / 4, abs=1e-6)


def test_t27_each_name_gives_another_number() -> None:
    numbers = [mean(name, random_pairs(), smoothing=0.2) for name in PAIR_LOSSES]
    assert len({round(number, 9) for number in numbers}) == len(PAIR_LOSSES)


def test_equal_policies_give_the_logarithm_of_two() -> None:
    pairs = random_pairs()
    equal = replace(pairs, reference_chosen=pairs.chosen, reference_rejected=pairs.rejected)
    for name in ("sigmoid", "length_normalised", "robust"):
        assert mean(name, equal) == pytest.approx(math.log(2), abs=1e-12)
    assert float(equal.margin.abs().max()) == 0


def test_a_loss_is_a_sum_over_pairs_and_counts_them() -> None:
    pairs = random_pairs(count=6)

    def part(which: slice) -> PairLogprobs:
        return PairLogprobs(*(value[which] for value in vars(pairs).values()))

    for loss in PAIR_LOSSES.values():
        whole, first, second = (
            loss(part(which), PairSettings()) for which in (slice(6), slice(2), slice(2, 6))
        )
        assert (whole.count, first.count, second.count) == (6, 2, 4)
        torch.testing.assert_close(whole.total, first.total + second.total)


@pytest.mark.parametrize("name", list(PAIR_LOSSES))
def test_gradients_are_those_of_differences(name: str) -> None:
    pairs = random_pairs(count=3)

    def total(chosen: Tensor, rejected: Tensor) -> Tensor:
        moved = replace(pairs, chosen=chosen, rejected=rejected)
        return PAIR_LOSSES[name](moved, PairSettings(beta=0.3, smoothing=0.1)).total

    inputs = (pairs.chosen.requires_grad_(), pairs.rejected.requires_grad_())
    assert torch.autograd.gradcheck(total, inputs)


def test_bradley_terry_has_its_worked_value() -> None:
    chosen, rejected = torch.tensor([1.5]), torch.tensor([0.5])
    assert float(bradley_terry(chosen, rejected, centring=0).total) == pytest.approx(
        0.3133, abs=5e-5
    )
    assert float(bradley_terry(chosen, rejected).total) == pytest.approx(0.3133 + 0.04, abs=5e-5)


def test_bradley_terry_asks_for_the_margin_that_raters_gave() -> None:
    chosen, rejected = torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0])
    loss = bradley_terry(chosen, rejected, centring=0, margins=torch.tensor([1.0, 3.0]))
    assert loss.count == 2
    assert float(loss.total) == pytest.approx(math.log(2) + math.log1p(math.exp(2)))


def test_bradley_terry_has_the_gradient_of_differences() -> None:
    scores = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def total(chosen: Tensor, rejected: Tensor) -> Tensor:
        return bradley_terry(chosen, rejected, margins=torch.full_like(chosen, 0.5)).total

    assert torch.autograd.gradcheck(total, tuple(row.requires_grad_() for row in scores))


def test_losses_stay_finite_at_margins_far_out() -> None:
    far = replace(WORKED, chosen=WORKED.chosen - 1e5)
    for name in PAIR_LOSSES:
        assert math.isfinite(mean(name, far, smoothing=0.1)), name
