"""Temperature, min_p, top_k, top_p: edges, order, exactness, and the warpers of transformers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_sampler import cut_min_p, cut_top_k, cut_top_p, weigh
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cutaway.core.errors import RequestError
from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.sampling.sampler import Sampler, stages_of


def row_of(**params: object) -> SamplerRow:
    return SamplerRow(params=SamplingParams(**params), seed=1, position=9)  # pyright: ignore


def weights_after(logits: Tensor, *rows: SamplerRow) -> Tensor:
    candidates = Candidates(logits)
    for stage in stages_of(rows[0]):
        candidates = stage(candidates, rows)
    return candidates.weights


def kept_set(logits: list[float], **params: object) -> set[int]:
    weights = weights_after(torch.tensor([logits]), row_of(**params))
    return set(weights[0].nonzero()[:, 0].tolist())


def sample_one(logits: Tensor, row: SamplerRow) -> int | None:
    return Sampler(logits.shape[-1]).sample(logits[None], [row])[0].token_id


@pytest.mark.parametrize("temperature", [0, 1e-12, 1e-5, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_c01_tiny_temperature_gives_the_argmax(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([3.0, 11.0625, -100.0, 11.0], dtype=dtype)
    for position in range(20):
        row = SamplerRow(params=SamplingParams(temperature=temperature), seed=3, position=position)
        assert sample_one(logits, row) == 1


def test_c01_temperature_never_overflows() -> None:
    logits = torch.tensor([[3e38, -3e38, 2.9e38, -math.inf]])
    for temperature in (1e-5, 1.0, 5.0):
        assert weights_after(logits, row_of(temperature=temperature)).tolist() == [[2**30, 0, 0, 0]]


@pytest.mark.parametrize("top_k", [0, -1, 1, 5, 6, 9_999_999])
def test_c03_top_k_at_its_edges(top_k: int) -> None:
    logits = [0.5, 1.5, 1.0, -1.0, 0.0]
    assert kept_set(logits, top_k=top_k) == ({1} if top_k == 1 else {0, 1, 2, 3, 4})
    # A greedy row beside it does not change.
    rows = [row_of(top_k=top_k), row_of(temperature=0.0)]
    mixed = Sampler(5).sample(torch.tensor([logits, logits]), rows)
    assert mixed[1].token_id == 1
    assert mixed[0].token_id == sample_one(torch.tensor(logits), rows[0])


@pytest.mark.parametrize("top_k", [-2, 2.5, True])
def test_c03_top_k_out_of_range_is_refused(top_k: object) -> None:
    with pytest.raises(RequestError, match=r"top_k is .*; it must be an integer") as error:
        row_of(top_k=top_k)
    assert error.value.param == "top_k"


def test_top_k_keeps_the_smaller_ids_among_equals() -> None:
    assert kept_set([1.0, 2.0, 1.0, 2.0, 1.0], top_k=3) == {0, 1, 3}
    assert kept_set([0.0] * 300, top_k=2) == {0, 1}


PROBABILITIES = [math.log(p) for p in (0.5, 0.3, 0.2)]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0, {0}),
        (1e-4, {0}),
        (0.49, {0}),
        (0.51, {0, 1}),
        (0.79, {0, 1}),
        (0.81, {0, 1, 2}),
        (1.0, {0, 1, 2}),
    ],
)
def test_c04_top_p_at_its_edges(top_p: float, kept: set[int]) -> None:
    assert kept_set(PROBABILITIES, top_p=top_p) == kept


@pytest.mark.parametrize("top_p", [1.5, -0.1, math.nan])
def test_c04_top_p_out_of_range_is_refused(top_p: float) -> None:
    with pytest.raises(RequestError, match=r"top_p is .*; it must be a number from 0 to 1"):
        row_of(top_p=top_p)


def test_c05_temperature_comes_before_truncation() -> None:
    assert kept_set([3.0, 2.0, 1.0], temperature=0.5, top_p=0.8) == {0}
    # What the other order would keep.
    assert kept_set([3.0, 2.0, 1.0], top_p=0.8) == {0, 1}


def test_c05_min_p_comes_before_top_p() -> None:
    # The cut tail no longer counts in the mass that top_p divides.
    logits = [math.log(p) for p in (0.4, 0.3, 0.1, 0.1, 0.1)]
    assert kept_set(logits, top_p=0.75) == {0, 1, 2}
    assert kept_set(logits, min_p=0.5, top_p=0.55) == {0}


@pytest.mark.parametrize(("temperature", "kept"), [(0.5, {0}), (1.0, {0, 1}), (2.0, {0, 1, 2})])
def test_c06_min_p_acts_after_temperature(temperature: float, kept: set[int]) -> None:
    assert kept_set([3.0, 2.0, 1.0], temperature=temperature, min_p=0.3) == kept


def test_c06_min_p_of_one_keeps_the_top_token_and_its_ties() -> None:
    assert kept_set([1.0, 3.0, 2.0, 3.0], min_p=1.0) == {1, 3}


def test_c06_min_p_leaves_raw_logprobs_alone() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    row = SamplerRow(params=SamplingParams(min_p=0.9), seed=1, position=1, num_logprobs=3)
    score = Sampler(3).sample(logits, [row])[0].score
    expected = logits.log_softmax(-1)[0].tolist()
    assert [logprob for _, logprob in score.top] == pytest.approx(expected, abs=1e-6)


ratios = st.floats(0, 1)


@settings(max_examples=150)
@given(
    st.lists(st.integers(-40, 8).map(lambda n: n / 4), min_size=1, max_size=150),
    ratios,
    st.integers(1, 200),
    ratios,
)
def test_kept_sets_equal_the_plain_twin(
    logits: list[float], min_p: float, top_k: int, top_p: float
) -> None:
    plain = weigh(logits)
    row = torch.tensor([logits])
    assert weights_after(row, row_of(min_p=min_p)).tolist() == [cut_min_p(plain, min_p)]
    assert weights_after(row, row_of(top_k=top_k)).tolist() == [cut_top_k(plain, logits, top_k)]
    assert weights_after(row, row_of(top_p=top_p)).tolist() == [cut_top_p(plain, top_p)]
    chain = cut_top_p(cut_top_k(cut_min_p(plain, min_p), logits, top_k), top_p)
    together = weights_after(row, row_of(min_p=min_p, top_k=top_k, top_p=top_p))
    assert together.tolist() == [chain]
    assert together.max().item() == 2**30  # the top token always stays


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_top_p_over_a_large_vocabulary_equals_the_plain_twin(spread: float) -> None:
    # Flat: all of V must be sorted. Peaked: the likeliest 128 suffice.
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * spread
    plain = cut_top_p(weigh(logits.tolist()), 0.6)
    assert weights_after(logits[None], row_of(top_p=0.6)).tolist() == [plain]


def test_rows_with_different_settings_cut_alike_alone_and_together() -> None:
    logits = torch.randn(4, 700, generator=torch.Generator().manual_seed(2)) * 3
    rows = [row_of(min_p=m, top_k=k, top_p=p) for m, k, p in
            ((0.01, 5, 0.9), (0.2, 600, 0.5), (1e-9, 1, 0.999), (0.05, 50, 0.0))]  # fmt: skip
    together = weights_after(logits, *rows)
    for i, row in enumerate(rows):
        assert torch.equal(weights_after(logits[i : i + 1], row)[0], together[i])


# The oracle keeps a set by masking the rest with -inf. Near a border of the set both sides round,
# so a set may differ by tokens at the very border: none did on these rows.
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_kept_sets_equal_the_warpers_of_transformers(temperature: float) -> None:
    logits = torch.randn(64, 997, generator=torch.Generator().manual_seed(3)) * 2
    cases = (
        ({"top_k": 40}, [TopKLogitsWarper(40)]),
        ({"top_p": 0.9}, [TopPLogitsWarper(0.9)]),
        ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
        ({"top_k": 100, "top_p": 0.8}, [TopKLogitsWarper(100), TopPLogitsWarper(0.8)]),
        # The warpers in Cutaway's order, min_p before top_p.
        ({"min_p": 0.01, "top_p": 0.8}, [MinPLogitsWarper(0.01), TopPLogitsWarper(0.8)]),
    )
    for params, warpers in cases:
        processors = LogitsProcessorList([TemperatureLogitsWarper(temperature), *warpers])
        expected = processors(torch.zeros(64, 1, dtype=torch.long), logits) > -math.inf
        rows = [row_of(temperature=temperature, **params)] * 64
        assert torch.equal(weights_after(logits, *rows) > 0, expected), params
