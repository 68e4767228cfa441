"""Stacks of matrices in MXFP4: blocks of 32 numbers of 4 bits that share a power of two.

They stay so in memory, 4.25 bits a number; a matrix is unpacked when it multiplies.
Source: OCP Microscaling Formats (MX) 1.0; the tensors _blocks and _scales of gpt-oss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
