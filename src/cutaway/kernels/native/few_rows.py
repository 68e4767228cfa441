"""Copies of a few rows between buffers, by their addresses.

Behind a model's weights no cache holds torch: its first call there takes as long as some fifty of
these.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor


class RowRoom:
    """A buffer of rows, where it lies and how large a row is: asked once.

    tensor: [room, D], contiguous.   room: rows.
    """

    __slots__ = ("_address", "_size", "room", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        assert tensor.dim() == 2 and tensor.is_contiguous(), "rows behind one another"
        self.tensor, self.room = tensor, tensor.shape[0]
        self._address, self._size = tensor.data_ptr(), tensor.shape[1] * tensor.itemsize

    def copy(self, first: int, out: RowRoom, place: int, count: int) -> None:
        """Copy rows from the first on to another buffer in main memory, from a place on there."""
        size = self._size
        assert 0 <= first <= first + count <= self.room, "rows lie in their buffer"
        assert 0 <= place <= place + count <= out.room and size == out._size, "they have room"
        ctypes.memmove(out._address + place * size, self._address + first * size, count * size)

    def put_side_by_side(self, sources: Sequence[RowRoom], first: int, place: int) -> None:
        """Put a row of some buffers into one from a place on; together they are as wide."""
        at = self._address + place * self._size
        end = at + self._size
        assert 0 <= place < self.room, "it has room"
        for each in sources:
            assert 0 <= first < each.room and at + each._size <= end, "rows lie in their buffers"
            ctypes.memmove(at, each._address + first * each._size, each._size)
            at += each._size


def row_rooms(tensors: Sequence[Tensor]) -> tuple[RowRoom, ...] | None:
    """Buffers that can be copied by address; None where one cannot."""
    is_sound = all(
        each.is_cpu and each.dtype == torch.float32 and each.is_contiguous() for each in tensors
    )
    return tuple(map(RowRoom, tensors)) if is_sound else None
