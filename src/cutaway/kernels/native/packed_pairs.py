"""Low-rank pairs of adapters in the form that native products read: packed, one table a linear."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy
import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import require
from cutaway.kernels.native.weight import Kind, PackedWeight

_LANES = 16
_KINDS = {torch.float32: Kind.F32, torch.float16: Kind.F16, torch.bfloat16: Kind.BF16}


@dataclass(frozen=True, eq=False)
class PackedPair:
    """What one adapter adds to one weight: up (down x).

    Shapes: down [rank, K rounded up to 16] and up [N, rank], both of one dtype.
    """

    down: Tensor
    up: PackedWeight

    @staticmethod
    def of(down: Tensor, up: Tensor) -> PackedPair:
        """A pair as it is stored. Shapes: down [rank, K], up [N, rank]."""
        require(down.dtype == up.dtype and down.dtype in _KINDS, "a pair has one type of floats")
        missing = -down.shape[1] % _LANES
        padded = torch.nn.functional.pad(down.detach(), (0, missing)).contiguous()
        return PackedPair(padded, PackedWeight.from_matrix(up, _KINDS[down.dtype]))


class PackedPairs:
    """The pairs beside a linear's weights, of every adapter.

    by_adapter: for each adapter a pair for each weight; None where it adds nothing.
    """

    def __init__(self, by_adapter: Sequence[Sequence[PackedPair | None]]) -> None:
        self._by_adapter = [tuple(each) for each in by_adapter]
        found = [pair for pairs in self._by_adapter for pair in pairs if pair is not None]
        require(bool(found), "a linear with pairs has one at least")
        self._most_rank = max(pair.up.num_columns for pair in found)
        count = len(self._by_adapter) * len(self._by_adapter[0])
        self._table = numpy.zeros(count * ctypes.sizeof(structs.PairStruct), numpy.uint8)
        self.kept: tuple[Tensor, ...] = (
            torch.from_numpy(self._table),
            *(each for pair in found for each in (pair.down, pair.up.data)),
        )

    def struct(self, num_rows: Sequence[int], num_columns: int) -> structs.PairsStruct:
        """For an operation with weights of so many rows and columns; it points into this object."""
        width = num_columns + -num_columns % _LANES
        entries = (structs.PairStruct * self._count).from_buffer(cast(Any, self._table))
        for adapter, pairs in enumerate(self._by_adapter):
            require(len(pairs) == len(num_rows), "an adapter has an entry for each weight")
            for index, (pair, rows) in enumerate(zip(pairs, num_rows, strict=True)):
                if pair is None:
                    continue
                require(pair.down.shape[1] == width, "a pair reads what its weight reads")
                require(pair.up.num_rows == rows, "a pair has a row for each of its weight's")
                entries[adapter * len(num_rows) + index] = structs.PairStruct(
                    pair.down.data_ptr(), pair.up.struct(), pair.up.num_columns
                )
        return structs.PairsStruct(self._table.ctypes.data, len(self._by_adapter), self._most_rank)

    @property
    def _count(self) -> int:
        return len(self._by_adapter) * len(self._by_adapter[0])
