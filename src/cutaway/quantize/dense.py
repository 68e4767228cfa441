"""A weight kept as it is, one number per entry. It can be trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutaway.kernels.gate import Gate
from cutaway.kernels.heads import HeadPlaces
from cutaway.kernels.linear import invariant_linear, linear, normed_linear
from cutaway.kernels.norm.late import LateNorm


class DenseWeight(nn.Module):
    """Matrix of floating-point numbers.

    product_dtype: what products are computed in, where it is not what is kept.
    is_invariant: whether rows are summed in one order on a GPU too, whatever their number.
    whole_rows: of the matrix of which a rank has some rows here; None where it has all of them.

    Shapes: weight [N, K].
    """

    product_dtype: torch.dtype | None = None
    is_invariant = False

    def __init__(self, num_rows: int, num_columns: int, *, whole_rows: int | None = None) -> None:
        super().__init__()
        self.whole_rows = whole_rows
        self.weight = nn.Parameter(torch.empty(num_rows, num_columns))

    @classmethod
    def of(cls, matrix: Tensor) -> DenseWeight:
        """Wrap a matrix without copying it."""
        with torch.device("meta"):
            weight = cls(*matrix.shape)
        weight.weight = nn.Parameter(matrix, requires_grad=matrix.requires_grad)
        return weight

    @classmethod
    def stack(cls, parts: Sequence[DenseWeight]) -> DenseWeight:
        """One matrix of several, below each other."""
        stacked = cls.of(torch.cat([part.weight.detach() for part in parts]))
        if any(part.whole_rows is not None for part in parts):
            stacked.whole_rows = sum(part.whole_rows or part.num_rows for part in parts)
        return stacked

    @property
    def num_rows(self) -> int:
        """Rows of the matrix, N."""
        return len(self.weight)

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N]."""
        if self.product_dtype is not None:
            return linear(x.to(self.product_dtype), self.weight.to(self.product_dtype))
        if self.is_invariant:
            return invariant_linear(x, self.weight, whole_rows=self.whole_rows)
        return linear(x, self.weight)

    def multiply_normed(self, x: LateNorm, after: Gate | HeadPlaces | None) -> Tensor | None:
        """The same of a norm taken on the way, and what follows; None: it cannot."""
        if self.product_dtype is not None or self.is_invariant:
            return None
        return normed_linear(x, self.weight, after)

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows, for a tied embedding. Shapes: token_ids [T] -> [T, K]."""
        return functional.embedding(token_ids, self.weight)

    def tiles(self, num_numbers: int) -> Iterator[Tensor]:
        """The matrix, about so many numbers at a time. Shapes: [n, K] each."""
        num_rows = max(1, num_numbers // self.weight.shape[1])
        for first in range(0, self.num_rows, num_rows):
            yield self.weight[first : first + num_rows]

    def dense(self) -> Tensor:
        """The matrix itself. Shapes: [N, K]."""
        return self.weight

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return self.weight.nbytes
