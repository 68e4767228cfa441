"""Memory of weights: whole, apart from one another, and let go with the last that lies in it."""

from __future__ import annotations

import gc
import mmap
import weakref
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cutaway.kernels.native import large_pages

SIZES = (1, 63, 64, 65, 4096, (1 << 20) + 3, (1 << 21) - 1)


def numbers(size: int) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


@pytest.mark.parametrize("size", [1, 4096, 1 << 21, (1 << 21) + 5, 5 << 20])
def test_room_is_zeros_that_a_register_can_load(size: int) -> None:
    room = large_pages.room_for(size)
    assert room.shape == (size,) and room.data_ptr() % 64 == 0 and not room.any()
    room.fill_(1)
    assert int(room.sum(dtype=torch.int64)) == size


def test_what_is_put_side_by_side_keeps_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_CHUNK_BYTES", 1 << 22)  # so that some begin another
    shelf = large_pages.Shelf()
    wanted = [numbers(size) for size in SIZES * 3]
    placed = [shelf.put(each) for each in wanted]
    for one, other in zip(placed, wanted, strict=True):
        assert torch.equal(one, other) and one.data_ptr() % 64 == 0
    spans = sorted((each.data_ptr(), each.data_ptr() + each.numel()) for each in placed)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_a_shape_stays_and_what_fills_large_pages_is_not_copied() -> None:
    shelf, large = large_pages.Shelf(), numbers(1 << 21)
    assert shelf.put(numbers(64).view(4, 16)).shape == (4, 16)
    assert shelf.put(large) is large


def test_memory_goes_with_the_last_tensor_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched(mmap.mmap):
        """One that can be watched."""

    made: list[weakref.ref[mmap.mmap]] = []

    def open_(*arguments: int, **named: int) -> Watched:
        memory = Watched(*arguments, **named)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(large_pages.mmap, "mmap", open_)
    shelf = large_pages.Shelf()
    first, second = shelf.put(numbers(100)), shelf.put(numbers(100))
    assert len(made) == 1
    del shelf, first
    gc.collect()
    assert made[0]() is not None and second.numel() == 100
    del second
    gc.collect()
    assert made[0]() is None


def test_a_system_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(large_pages.mmap, "MADV_HUGEPAGE")
    assert not large_pages.room_for(3 << 20).any()
    data = numbers(100)
    assert large_pages.Shelf().put(data) is data
