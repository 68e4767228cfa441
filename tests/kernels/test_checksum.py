"""The checksum of a row: a worked example, and what it must tell apart."""

from __future__ import annotations

import struct

import torch
from hypothesis import given
from hypothesis import strategies as st

from cutaway.kernels.checksum import checksum


def whole(row: torch.Tensor) -> int:
    low, high = checksum(row[None])[0].tolist()
    return low | high << 32


def by_hand(values: list[float]) -> int:
    """In Python's integers."""
    total = 0
    for place, value in enumerate(values):
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        total += bits * ((place * 0x9E3779B1 & 0xFFFFFFFF) | 1)
    return total % 2**64


def test_it_is_the_sum_of_bits_times_odd_factors() -> None:
    values = [1.0, -2.5, float("inf"), 0.0, -0.0, 3e-39]
    assert whole(torch.tensor(values)) == by_hand(values)
    assert by_hand([1.0]) == 0x3F800000


@given(st.integers(1, 400), st.data())
def test_a_single_changed_bit_and_two_swapped_entries_show(size: int, data: st.DataObject) -> None:
    row = torch.randn(size, generator=torch.Generator().manual_seed(size))
    place, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 31))
    changed = row.clone().view(torch.int32)
    changed[place] ^= -(2**31) if bit == 31 else 1 << bit
    assert whole(changed.view(torch.float32)) != whole(row)
    if size > 1:
        swapped = row.clone()
        swapped[[0, size - 1]] = row[[size - 1, 0]]
        assert whole(swapped) != whole(row)


def test_rows_do_not_depend_on_their_company() -> None:
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    assert checksum(rows).tolist() == [checksum(row[None])[0].tolist() for row in rows]
