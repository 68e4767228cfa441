"""Stacks of matrices in MXFP4: blocks of 32 numbers of 4 bits that share a power of two.

They stay so in memory, 4.25 bits a number; a matrix is unpacked when it multiplies.
Source: OCP Microscaling Formats (MX) 1.0; the tensors _blocks and _scales of gpt-oss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from cutaway.kernels.native import Groups, Kind, PackedWeight
from cutaway.quantize.packed import Packed

BLOCK = 32  # numbers that share a scale
_HALVES = (0, 1, 2, 3, 4, 6, 8, 12)  # twice the numbers of e2m1, by their low three bits
_EXPONENT_BIAS = 127


def unpack_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of blocks, exact in float32 and bfloat16. A byte has the earlier one below.

    Shapes: blocks uint8 [..., K / 32, 16], scales uint8 [..., K / 32] -> [..., K].
    """
    nibbles = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)  # [..., K / 32, 32]
    values = torch.tensor((*_HALVES, *(-half for half in _HALVES)), device=blocks.device) / 2
    exponents = scales.to(torch.int32)[..., None] - _EXPONENT_BIAS
    # 2 ** 127 times 6 is past float32: as in the reference it becomes infinite.
    return torch.ldexp(values[nibbles.long()], exponents).flatten(-2).to(dtype)


_CHUNK: Final = 4096  # rows that are taken apart at once


@dataclass(frozen=True)
class Mxfp4Matrix:
    """A matrix of N rows and K columns as files have it.

    Shapes: blocks uint8 [N, K / 32, 16], scales uint8 [N, K / 32].
    """

    blocks: Tensor
    scales: Tensor

    def pack(self, row_order: Tensor | None) -> Packed | None:
        """By twice its numbers, which are integers; None where float16 is too small for a scale.

        A scale below 2^-24 becomes 0.
        """
        rows, columns = len(self.scales), self.scales.shape[1] * BLOCK
        weight = PackedWeight.from_groups(Kind.Q8, self._chunks(row_order), shape=(rows, columns))
        return None if weight is None else Packed(weight)

    def keep(self, row_order: Tensor | None) -> nn.Module | None:
        """None: for torch whole stacks are kept."""
        return None

    def _chunks(self, row_order: Tensor | None) -> Iterator[Groups]:
        table = torch.tensor((*_HALVES, *(-half for half in _HALVES)), dtype=torch.int8)
        for first in range(0, len(self.scales), _CHUNK):
            rows = slice(first, first + _CHUNK)
            chosen = rows if row_order is None else row_order[rows]
            blocks, scales = self.blocks[chosen], self.scales[chosen]
            nibbles = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(1)
            exponents = scales.to(torch.int32) - _EXPONENT_BIAS - 1
            yield Groups(table[nibbles.long()], torch.ldexp(torch.ones(exponents.shape), exponents))


class Mxfp4Stack(nn.Module):
    """E matrices of N rows and K columns, as the file has them. They cannot be trained.

    Shapes: blocks uint8 [E, N, K / 32, 16], scales uint8 [E, N, K / 32].
    """

    blocks: Tensor
    scales: Tensor

    def __init__(self, blocks: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("blocks", blocks)
        self.register_buffer("scales", scales)

    def matrix(self, index: int, dtype: torch.dtype) -> Tensor:
        """One of them, unpacked. Shapes: [N, K]."""
        return unpack_mxfp4(self.blocks[index], self.scales[index], dtype)

    @property
    def num_matrices(self) -> int:
        """How many there are, E."""
        return len(self.blocks)

    @property
    def num_bytes(self) -> int:
        """Bytes that all take, scales included."""
        return self.blocks.nbytes + self.scales.nbytes
