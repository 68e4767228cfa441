"""Matrices of one shape in one buffer, packed as weights are: the experts of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.large_pages import room_for
from cutaway.kernels.native.weight import PANEL_ROWS, Kind, PackedWeight, packed_bytes

_ALIGNMENT: Final = 64  # bytes from a multiple of which each matrix begins


@dataclass(frozen=True, eq=False)
class WeightStack:
    """num_matrices matrices of num_rows rows and num_columns columns.

    Shapes: data, bytes [num_matrices, bytes of one], each as native/kernels/panel.h says.
    """

    data: Tensor
    num_rows: int
    num_columns: int
    kind: Kind

    @staticmethod
    def zeros(num_matrices: int, num_rows: int, num_columns: int, kind: Kind) -> WeightStack:
        """Matrices of zeros, which put fills."""
        size = packed_bytes(kind, (num_rows, num_columns))
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        data = room_for(num_matrices * size).view(num_matrices, size)
        return WeightStack(data, num_rows, num_columns, kind)

    @staticmethod
    def of(matrices: Sequence[PackedWeight]) -> WeightStack:
        """Copies of matrices that are alike in shape and kind."""
        one = matrices[0]
        stack = WeightStack.zeros(len(matrices), one.num_rows, one.num_columns, one.kind)
        for index, matrix in enumerate(matrices):
            if matrix.num_rows != stack.num_rows:
                raise AssertionError("matrices of a stack have one shape and kind")
            stack.put(index, matrix)
        return stack

    def put(
        self, index: int, source: PackedWeight, *, first: int = 0, rows: slice = slice(None)
    ) -> None:
        """Copy rows of a packed matrix, from its row first on, to these rows of matrix index."""
        if (source.num_columns, source.kind) != (self.num_columns, self.kind):
            raise AssertionError("matrices of a stack have one shape and kind")
        to = range(self.num_rows)[rows]
        if first + len(to) > source.num_rows:
            raise AssertionError(f"rows {first} to {first + len(to)} of {source.num_rows}")
        into = self.matrix(index)
        is_whole = to.step == 1 and to.start % PANEL_ROWS == 0 and first % PANEL_ROWS == 0
        if is_whole and len(to) % PANEL_ROWS == 0:
            count, panel = len(to) // PANEL_ROWS, to.start // PANEL_ROWS
            at = first // PANEL_ROWS
            into.panels()[panel : panel + count] = source.panels()[at : at + count]
            return
        there = torch.arange(to.start, to.stop, to.step)
        here = torch.arange(first, first + len(to))
        for ours, theirs in zip(into.lanes(), source.lanes(), strict=True):
            values = theirs[here // PANEL_ROWS, :, :, here % PANEL_ROWS]
            ours[there // PANEL_ROWS, :, :, there % PANEL_ROWS] = values

    def matrix(self, index: int) -> PackedWeight:
        """One of them, in this stack's memory."""
        size = packed_bytes(self.kind, (self.num_rows, self.num_columns))
        return PackedWeight(self.data[index, :size], self.num_rows, self.num_columns, self.kind)

    @property
    def num_matrices(self) -> int:
        """How many there are, E."""
        return len(self.data)

    @property
    def num_bytes(self) -> int:
        """Bytes that all take, scales included."""
        return self.data.nbytes

    def struct(self) -> structs.StackStruct:
        """The form that native operations take; it points into this stack's memory."""
        return structs.StackStruct(
            *(self.data.data_ptr(), self.num_matrices),
            *(self.num_rows, self.num_columns, self.kind),
        )
