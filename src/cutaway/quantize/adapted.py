"""A kept weight with a low-rank pair beside it: what LoRA trains, and what can be switched off."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cutaway.quantize.scheme import Weight


class Adapted(nn.Module):
    """y = W x + scale * up (down x), W as it is stored and never changed.

    is_on: off, products are those of W alone, by the very same operation.

    Shapes: W [N, K], down [rank, K], up [N, rank].   Source: Hu et al. 2021, arXiv 2106.09685.
    """

    def __init__(self, base: nn.Module, down: Tensor, up: Tensor, *, scale: float) -> None:
        super().__init__()
        self.base = base
        self.adapter_down, self.adapter_up = nn.Parameter(down), nn.Parameter(up)
        self.scale = scale
        self.is_on = True

    @property
    def rank(self) -> int:
        """Rows of down."""
        return len(self.adapter_down)

    @property
    def num_rows(self) -> int:
        """Rows of the matrix, N."""
        return cast(Weight, self.base).num_rows

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix, the pair's part added. Shapes: x [..., K] -> [..., N].

        The pair multiplies in the dtype in which the matrix does.
        """
        kept = cast(Weight, self.base).multiply(x)
        if not self.is_on:
            return kept
        x = x.to(kept.dtype)
        narrow = functional.linear(x, self.adapter_down.to(x.dtype))
        return kept + self.scale * functional.linear(narrow, self.adapter_up.to(x.dtype))

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows of the matrix with the pair's part. Shapes: token_ids [T] -> [T, K]."""
        kept = cast(Weight, self.base).rows(token_ids)
        if not self.is_on:
            return kept
        return kept + self.scale * (self.adapter_up[token_ids] @ self.adapter_down).to(kept.dtype)

    def dense(self) -> Tensor:
        """The one matrix that multiplies alike. Shapes: [N, K]."""
        kept = cast(Weight, self.base).dense()
        if not self.is_on:
            return kept
        return kept + (self.scale * self.adapter_up @ self.adapter_down).to(kept.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored matrix and the pair."""
        pair = self.adapter_down.nbytes + self.adapter_up.nbytes
        return cast(Weight, self.base).num_bytes + pair


def adapt(base: nn.Module, *, rank: int, alpha: float, seed: int) -> Adapted:
    """A pair that adds nothing yet: down is drawn as peft draws it, up is 0.

    base: a Weight.
    """
    matrix = cast(Weight, base).dense()
    num_rows, num_columns = matrix.shape
    generator = torch.Generator().manual_seed(seed)
    bound = num_columns**-0.5
    down = torch.rand(rank, num_columns, generator=generator) * 2 * bound - bound
    up = torch.zeros(num_rows, rank)
    return Adapted(base, down.to(matrix.device), up.to(matrix.device), scale=alpha / rank)
