"""Integer weights: bit equal to the plain twin, close to the true exponential, exact in sum."""

from __future__ import annotations

import json
import math
from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_sampler import GOLDEN, bits, exponential, from_bits, logsumexp
from torch import Tensor

from cutaway.sampling import integer_weights
from cutaway.sampling.candidates import Candidates
from cutaway.sampling.draw import draw, multiply_fraction
from cutaway.sampling.integer_weights import (
    MAX_VOCAB_SIZE,
    POLYNOMIAL,
    exact_sum,
    log_of_total,
    total_exponential,
    weigh,
)

finite = st.floats(-1e4, 1e4, width=32)


def exponential_tensor(logits: list[float], peak: float) -> Tensor:
    return integer_weights.exponential(torch.tensor([logits]), torch.tensor([[peak]]))


def test_coefficients_are_float32_numbers() -> None:
    assert torch.tensor(POLYNOMIAL, dtype=torch.float32).double().tolist() == list(POLYNOMIAL)
    # log2(e) and the coefficient of f, ln 2, are what their names say.
    assert abs(integer_weights.LOG2_E - math.log2(math.e)) < 1e-7
    assert abs(POLYNOMIAL[-1] - math.log(2)) < 2e-7


def test_exponential_gives_the_golden_values() -> None:
    for case in json.loads(GOLDEN.read_text())["exponential"]:
        logit, peak = from_bits(case["logit"]), from_bits(case["peak"])
        result = exponential_tensor([logit], peak)
        assert bits(result.item()) == case["result"]
        assert weigh(result).item() == case["weight"]


@given(st.lists(finite, min_size=1, max_size=40))
def test_exponential_equals_the_plain_twin_bit_for_bit(logits: list[float]) -> None:
    peak = max(logits)
    expected = [exponential(logit, peak) for logit in logits]
    assert exponential_tensor(logits, peak).tolist() == [expected]


def test_exponential_is_close_to_the_true_one() -> None:
    exponents = torch.linspace(-60, 0, 1_000_001, dtype=torch.float32)
    result = integer_weights.exponential(exponents[None], torch.zeros(1, 1))[0].double()
    # The polynomial alone: against 2^(the rounded product that enters it).
    product = (exponents * integer_weights.LOG2_E).double().clamp(min=-64)
    assert ((result / product.exp2()) - 1).abs().max().item() < 1.95e-7
    # The whole: the product's own rounding adds up to half a unit in its last place.
    near = exponents > -21
    error = ((result / exponents.double().exp()) - 1).abs()
    assert error[near].max().item() < 1.5e-6


def test_the_largest_logit_weighs_exactly_2_to_30() -> None:
    logits = torch.tensor([[-3.0, 17.25, 17.0, -math.inf, -1e30]])
    row = Candidates(logits).weights
    assert row[0, 1].item() == 2**30
    assert row[0, 3].item() == row[0, 4].item() == 0


def test_no_weight_exceeds_that_of_the_largest_logit() -> None:
    exponents = -torch.linspace(0, 1e-5, 500_001)[None]
    assert weigh(integer_weights.exponential(exponents, torch.zeros(1, 1))).max().item() == 2**30


def test_sums_are_exact_in_any_order() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 100_003, generator=generator)
    row = Candidates(logits).weights
    expected = sum(int(weight) for weight in row[0].tolist())
    shuffled = row[:, torch.randperm(100_003, generator=generator)]
    assert int(exact_sum(row)) == int(exact_sum(shuffled)) == expected < 2**53
    assert int(row.cumsum(-1, dtype=torch.float64)[0, -1]) == expected


def test_the_largest_vocabulary_sums_below_2_to_53() -> None:
    assert MAX_VOCAB_SIZE * integer_weights.SUM_SCALE <= 2**53
    ones = torch.ones(1, MAX_VOCAB_SIZE)
    assert int(total_exponential(ones)) == MAX_VOCAB_SIZE * 2**34


@given(st.lists(finite, min_size=1, max_size=60))
def test_logsumexp_equals_the_plain_twin(logits: list[float]) -> None:
    row = Candidates(torch.tensor([logits]))
    got = row.peak.item() + log_of_total(total_exponential(row.exponentials).item())
    assert bits(got) == bits(logsumexp(logits))


def test_logsumexp_keeps_a_long_tail() -> None:
    # 128,000 tokens of probability 1e-10 each: on the scale of the draw all would vanish. They
    # are equal, so all round alike: the worst case.
    logits = torch.full((1, 128_000), math.log(1e-10))
    logits[0, 0] = 0.0
    row = Candidates(logits)
    got = log_of_total(total_exponential(row.exponentials).item())
    expected = logits.double().logsumexp(-1).item()
    assert abs(got - expected) < 128_000 * 2**-35
    assert (row.weights > 0).sum() == 1


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**32))
def test_scaled_is_exact(total: int, fraction: int) -> None:
    assert (
        multiply_fraction(torch.tensor([total]), torch.tensor([fraction])).item()
        == total * fraction >> 32
    )


@given(st.lists(st.integers(0, 2**23), min_size=1, max_size=200), st.integers(0, 2**32 - 1))
def test_draw_takes_the_first_token_above_the_target(row: list[int], u: int) -> None:
    row[len(row) // 2] += 1  # at least one token can be drawn
    drawn = draw(torch.tensor([row], dtype=torch.float32), torch.tensor([u]))
    target = u * sum(row) >> 32
    ends = list(accumulate(row))
    token_id = next(i for i, end in enumerate(ends) if end > target)
    assert drawn.token_ids.tolist() == [token_id]
    assert (drawn.total.item(), drawn.target.item()) == (sum(row), target)
    assert drawn.cumulative.item() == ends[token_id]


def test_draw_reaches_the_first_and_the_last_token() -> None:
    row = torch.zeros(2, 1000)
    row[:, 3], row[:, 997] = 5.0, 2.0**30
    drawn = draw(row, torch.tensor([0, 2**32 - 1]))
    assert drawn.token_ids.tolist() == [3, 997]
