"""The largest values in a fixed order, whatever the ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cutaway.sampling.largest import first_largest, largest

few_values = st.sampled_from([-math.inf, -2.0, -1.0, -0.0, 0.0, 1e-40, 1.0, 2.0])


def expected_order(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@given(st.lists(few_values, min_size=1, max_size=300), st.data())
def test_order_is_value_descending_then_index(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    row = torch.tensor([values])
    assert largest(row, count).tolist() == [expected_order(values)[:count]]
    assert first_largest(row).tolist() == expected_order(values)[:1]


@pytest.mark.parametrize("size", [63, 64, 65, 1000, 50257])
@pytest.mark.parametrize("count", [1, 5, 50])
def test_rows_of_many_chunks(size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = (torch.randn(3, size, generator=generator) * 8).round() / 8  # many ties
    found = largest(rows, count)
    for row, indices in zip(rows.tolist(), found.tolist(), strict=True):
        assert indices == expected_order(row)[:count]
    assert first_largest(rows).tolist() == found[:, 0].tolist()


def test_a_flat_row_gives_the_first_indices() -> None:
    for value in (0.0, -math.inf, 7.0):
        assert largest(torch.full((1, 500), value), 3).tolist() == [[0, 1, 2]]
        assert first_largest(torch.full((1, 500), value)).tolist() == [0]


def test_nan_gives_valid_indices() -> None:
    row = torch.full((1, 130), math.nan)
    assert_valid(largest(row, 2), 130)
    assert_valid(first_largest(row)[None], 130)


def assert_valid(indices: Tensor, size: int) -> None:
    assert 0 <= indices.min().item() <= indices.max().item() < size
