"""Matrices in a stack in a packed layout of the native CPU kernels. They serve alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.kernels.native import WeightStack


class PackedStack(nn.Module):
    """E matrices of N rows and K columns in panels; see native/kernels/panel.h.

    The native kernels read stack itself; matrix is the plain twin and unpacks one.
    """

    def __init__(self, stack: WeightStack) -> None:
        super().__init__()
        self.stack = stack

    def matrix(self, index: int, dtype: torch.dtype) -> Tensor:
        """One of them, unpacked. Shapes: [N, K]."""
        return self.stack.matrix(index).dense().to(dtype)

    @property
    def num_matrices(self) -> int:
        """How many there are, E."""
        return self.stack.num_matrices

    @property
    def num_bytes(self) -> int:
        """Bytes that all take, scales included."""
        return self.stack.num_bytes
