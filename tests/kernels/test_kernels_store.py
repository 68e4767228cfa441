"""Numbers of eight bits with a scale per row, and what attention reads of them."""

from __future__ import annotations

import pytest
import torch

from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import paged_attention
from cutaway.kernels.store import scale_rows, store

EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_int8_is_within_half_a_step_of_its_scale() -> None:
    values = random(50, 3, 64) * torch.logspace(-20, 20, 50)[:, None, None]
    numbers, scales = scale_rows(values, torch.int8)
    error = (numbers.double() * scales[..., None].double() - values).abs()
    assert (numbers.abs().amax(-1) == 127).all()
    assert (error <= 0.5001 * scales[..., None]).all()


def test_float8_is_within_a_sixteenth_of_each_number() -> None:
    values = random(50, 3, 64)
    numbers, scales = scale_rows(values, torch.float8_e4m3fn)
    error = (numbers.double() * scales[..., None].double() - values).abs()
    # Three bits of mantissa; below 2^-6 of a scale steps are 2^-9.
    assert (error <= (values.abs() / 16 + scales[..., None] * 2**-10) * 1.0001).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_rows_of_zeros_stay_zeros_and_what_is_not_finite_shows(dtype: torch.dtype) -> None:
    values = torch.zeros(4, 8)
    values[1, 2], values[2, 3], values[3, 0] = torch.nan, -torch.inf, 1e-38
    numbers, scales = scale_rows(values, dtype)
    kept = numbers.float() * scales[:, None]
    assert (kept[0] == 0).all() and (kept[3] == 0).all()
    assert not kept[1].isfinite().any() and not kept[2].isfinite().any()


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("queries", [1, 20])
def test_attention_reads_numbers_times_their_scales(dtype: torch.dtype, queries: int) -> None:
    length, page_size = 300, 16
    key, value, query = (random(length, 2, 32, seed=i) for i in range(3))
    query = query[-queries:].repeat(1, 2, 1)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(length)
    slots = order[positions // page_size] * page_size + positions % page_size
    settings = {
        "page_table": order[None],
        "context_lengths": torch.tensor([length]),
        "plan": ShapePlan((queries,), (length,)),
        "softmax_scale": 0.2,
    }
    found, exact = [], []
    for each in (key, value):
        pages, scales = torch.zeros(20, page_size, 2, 32, dtype=dtype), torch.zeros(20, 16, 2)
        store(pages, each, slots, scales=scales)
        found.append((pages, scales))
        exact.append(torch.zeros(20, page_size, 2, 32))
        numbers, factors = scale_rows(each, dtype)
        store(exact[-1], numbers.float() * factors[..., None], slots)
    (keys, key_scales), (values, value_scales) = found
    ours = paged_attention(
        query, keys, values, key_scales=key_scales, value_scales=value_scales, **settings
    )
    assert torch.equal(ours, paged_attention(query, *exact, **settings))
    plain = [torch.zeros(20, page_size, 2, 32) for _ in range(2)]
    for pages, each in zip(plain, (key, value), strict=True):
        store(pages, each, slots)
    # Rounding to 8 bits moves a score by up to a few hundredths here.
    assert (ours - paged_attention(query, *plain, **settings)).abs().max() < 0.1
