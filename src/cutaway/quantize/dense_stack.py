"""Matrices of one shape in a stack, one per expert, kept as they are. They can be trained."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class Stack(Protocol):
    """E matrices of N rows and K columns in some storage scheme."""

    def matrix(self, index: int, dtype: torch.dtype) -> Tensor:
        """One of them as numbers. Shapes: [N, K]."""
        ...

    @property
    def num_matrices(self) -> int:
        """How many there are, E."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that all take, scales included."""
        ...


class DenseStack(nn.Module):
    """Stack of floating-point numbers.

    product_dtype: what training multiplies in, where it is not what is kept.
    Shapes: weight [E, N, K].
    """

    product_dtype: torch.dtype | None = None

    def __init__(self, num_matrices: int, num_rows: int, num_columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_matrices, num_rows, num_columns))

    def matrix(self, index: int, dtype: torch.dtype) -> Tensor:
        """One of them as numbers. Shapes: [N, K]."""
        return self.weight[index].to(dtype)

    @property
    def num_matrices(self) -> int:
        """How many there are, E."""
        return len(self.weight)

    @property
    def num_bytes(self) -> int:
        """Bytes that all take."""
        return self.weight.nbytes
