"""A matrix of 8-bit floats with scales for rows, for blocks, or one for all; it serves as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutaway.kernels import floats8
from cutaway.kernels.linear import linear
from cutaway.quantize.packed import Packed

E4M3 = torch.float8_e4m3fn
E4M3_LARGEST = 448.0


@dataclass(frozen=True)
class Float8Matrix:
    """values * quant_scale, each scale for a block of rows and columns; the last may be cut short.

    Shapes: values [N, K] float8, quant_scale [A, B]; block is how many rows and columns one covers.
    """

    values: Tensor
    quant_scale: Tensor
    block: tuple[int, int]

    def dense(self) -> Tensor:
        """The matrix unpacked. Shapes: [N, K] float32."""
        return unpack(self.values, self.quant_scale, self.block)

    def keep(self, row_order: Tensor | None) -> nn.Module | None:
        """A weight for torch that unpacks at each use; None where rows would leave their block."""
        if row_order is None:
            return KeptFloats8(self)
        if self.block[0] > 1 and len(self.quant_scale) > 1:
            return None  # rows that move would leave their block; no file has both
        scale = self.quant_scale if len(self.quant_scale) == 1 else self.quant_scale[row_order]
        values = self.values.view(torch.uint8)[row_order].view(self.values.dtype)
        return KeptFloats8(Float8Matrix(values, scale, self.block))

    def pack(self, row_order: Tensor | None) -> Packed | None:
        """None: it goes by way of floats to 8 bits per group of 32."""
        return None  # by way of floats to 8 bits per group of 32


def unpack(values: Tensor, quant_scale: Tensor, block: tuple[int, int]) -> Tensor:
    """In float32. Shapes: as Float8Matrix has them -> [N, K]."""
    rows, columns = values.shape
    scale = quant_scale.float()
    if scale.shape[0] > 1:
        scale = scale.repeat_interleave(block[0], 0)[:rows]
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(block[1], 1)[:, :columns]
    return values.float() * scale


class KeptFloats8(nn.Module):
    """The same for torch: multiplied as it is where a GPU can, unpacked at each use elsewhere."""

    values: Tensor
    quant_scale: Tensor

    def __init__(self, matrix: Float8Matrix) -> None:
        super().__init__()
        self._block = matrix.block
        self.register_buffer("values", matrix.values.contiguous())
        self.register_buffer("quant_scale", matrix.quant_scale.contiguous())

    @property
    def num_rows(self) -> int:
        """Rows of the matrix, N."""
        return len(self.values)

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N]."""
        if floats8.is_taken(x, self.values, self.quant_scale):
            return floats8.multiply(x, self.values, self.quant_scale)
        return linear(x, self.dense().to(x.dtype))

    @classmethod
    def stack(cls, parts: Sequence[KeptFloats8]) -> KeptFloats8 | None:
        """One matrix of several, below each other; None unless each has a scale per row, or one."""
        if any(part.quant_scale.shape[1] != 1 for part in parts):
            return None
        if any(len(part.quant_scale) not in (1, part.num_rows) for part in parts):
            return None
        values = torch.cat([part.values.view(torch.uint8) for part in parts])
        scale = torch.cat([part.quant_scale.expand(part.num_rows, 1) for part in parts])
        block = (1, values.shape[1])
        return cls(Float8Matrix(values.view(parts[0].values.dtype), scale, block))

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows, for a tied embedding. Shapes: token_ids [T] -> [T, K]."""
        return self.dense()[token_ids]

    def dense(self) -> Tensor:
        """The matrix itself. Shapes: [N, K]."""
        return unpack(self.values, self.quant_scale, self._block)

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, scales included."""
        return self.values.nbytes + self.quant_scale.nbytes
