"""The native sampler gives what the stages in torch give, bit for bit, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import ISAS, needs_native, running
from torch import Tensor

from cutaway.core.request import SamplingParams
from cutaway.kernels import native
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.sampler import Sampled, Sampler, sample_native, sample_plain

pytestmark = needs_native

SIZES = (1, 15, 16, 63, 64, 65, 1000, 5000, 49152)


def plain_of(results: list[Sampled]) -> list[tuple[object, ...]]:
    """Comparable: NaN equals NaN."""
    return [
        (
            each.token_id,
            each.u,
            each.checksum,
            *(str(number) for number in each.score),
        )
        for each in results
    ]


def assert_alike(logits: Tensor, rows: list[SamplerRow]) -> None:
    drawn = sample_native(native.RowSampler(logits), rows)
    assert plain_of(drawn) == plain_of(sample_plain(logits, rows))


def logits_of(kind: str, num_rows: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, size, generator=generator)
    match kind:
        case "peaked":
            logits *= 8
        case "flat":  # thousands of equal weights: top_p needs nearly all of them
            logits *= 1e-6
        case "ties":
            logits = (logits * 2).round()
        case "holes":
            logits[torch.rand(num_rows, size, generator=generator) < 0.7] = -math.inf
            logits[:, size // 2] = 1.0
        case "bad":
            logits[0, size // 3] = math.nan
            logits[-1, size // 2] = math.inf
        case "huge":
            logits *= 1e30
        case _:
            raise AssertionError(kind)
    return logits


KINDS = ("peaked", "flat", "ties", "holes", "bad", "huge")

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-5, 0.2, 0.7, 1.0, 1.5, 5.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 40, 64, 1000, 3000, 40_000, 10**6]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0 - 1e-12, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    size=st.sampled_from(SIZES),
    chosen=st.lists(params, min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
    num_logprobs=st.sampled_from([None, 0, 5]),
)
def test_any_settings_on_any_logits(
    kind: str, size: int, chosen: list[SamplingParams], seed: int, num_logprobs: int | None
) -> None:
    rows = [
        SamplerRow(
            params=each,
            seed=seed,
            position=index,
            prompt_token_ids=(0, size - 1),
            banned_token_ids=(0,) if index == 1 else (),
            num_logprobs=num_logprobs,
        )
        for index, each in enumerate(chosen)
    ]
    assert_alike(logits_of(kind, len(rows), size, seed), rows)


SETTINGS = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
    {"top_k": 2000, "top_p": 0.7},  # more than are sorted
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_and_number_of_threads(isa: str, kind: str) -> None:
    rows = [
        SamplerRow(params=SamplingParams(**each), seed=7, position=index)
        for index, each in enumerate(SETTINGS * 2)
    ]
    for size in (17, 1000, 5000):
        logits = logits_of(kind, len(rows), size, size)
        for threads in (1, 2, 3):
            with running(isa, threads):
                assert_alike(logits, rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_divide_few_rows_and_draw_the_same(isa: str, kind: str) -> None:
    # Where some would stand idle; a small row gives some of them nothing.
    settings = [
        {**each, "logit_bias": {3: 2.5}} if at % 2 else each for at, each in enumerate(SETTINGS)
    ]
    rows = [
        SamplerRow(params=SamplingParams(**each), seed=11, position=index)
        for index, each in enumerate(settings)
    ]
    for size, count, threads in (
        (5, 7, 14),
        (1000, 7, 14),
        (1000, 3, 2),
        (1000, 1, 2),
        (1000, 1, 20),
    ):
        logits = logits_of(kind, count, size, size + 1)
        with running(isa, threads):
            assert_alike(logits, rows[-count:])


def test_many_draws_of_one_row() -> None:
    # Every token of a small vocabulary is drawn, the last one too.
    logits = torch.linspace(-1, 1, 24)[None].repeat(2000, 1)
    rows = [SamplerRow(params=SamplingParams(top_p=0.97), seed=3, position=p) for p in range(2000)]
    assert_alike(logits, rows)
    drawn = {each.token_id for each in sample_native(native.RowSampler(logits), rows)}
    assert len(drawn) > 20 and 23 in drawn


def test_a_step_without_rows_draws_nothing() -> None:
    assert sample_native(native.RowSampler(torch.zeros(0, 64)), []) == []


def test_a_wrong_row_is_refused() -> None:
    row = SamplerRow(params=SamplingParams(), seed=1, position=1)
    with pytest.raises(AssertionError, match="not a contiguous float32"):
        sample_native(native.RowSampler(torch.zeros(2, 64)[:, ::2].double()), [row, row])


def test_logits_that_changed_where_they_lie_are_read_anew() -> None:
    sampler, logits = Sampler(256), torch.empty(2, 256)
    plain = SamplerRow(params=SamplingParams(temperature=0.7), seed=5, position=9)
    biased = SamplerRow(params=SamplingParams(logit_bias={7: 100.0}), seed=5, position=9)
    edited: list[SamplerRow] = [biased, plain]
    for seed, rows in enumerate(([plain, plain], edited, [plain, plain], edited[::-1])):
        logits.copy_(torch.randn(2, 256, generator=torch.Generator().manual_seed(seed)))
        assert plain_of(sampler.sample(logits, rows)) == plain_of(sample_plain(logits, rows))
    with pytest.raises(AssertionError, match=r"logits are \(2, 256\)"):
        sampler.sample(logits, [plain])
    assert sampler.sample(logits[:1], [plain])[0] == sample_plain(logits[:1], [plain])[0]
