"""Token ids to hidden vectors: rows of a matrix, plus rows by position where there are such."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from cutaway.blocks.linear import division_error
from cutaway.blocks.slots import Norm
from cutaway.core.shards import cuts
from cutaway.core.step import Step
from cutaway.host.turns import breathe
from cutaway.kernels.elementwise import power, row_sum
from cutaway.kernels.gather import Gatherer, gather_rows
from cutaway.kernels.linear import take_rows
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed


class PositionTable(Protocol):
    """A vector per position. Shapes: step.positions [T] -> [T, D]."""

    def __call__(self, positions: Tensor) -> Tensor: ...


class Embedding(nn.Module):
    """Row lookup.

    multiplier: what rows are multiplied by, rounded to their dtype as Gemma does.
    norm:       of what comes of that.
    positions:  added afterwards, for models that mark positions in the embedding.

    Shapes: step.token_ids [T] -> [T, D].
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        multiplier: float | None = None,
        norm: Norm | None = None,
        positions: PositionTable | None = None,
    ) -> None:
        super().__init__()
        self.table: DenseWeight | Packed = DenseWeight(vocab_size, width)
        self.num_rows, self.width = vocab_size, width
        self.multiplier = multiplier
        self.norm = norm
        self.positions = positions
        self.rows: tuple[range, ...] = ()  # of each rank, where the table is divided
        self.group: Gatherer | None = None

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of the table; each row is fetched from who has it."""
        self.rows, self.group = cuts(self.num_rows, group.size), group
        self.table = DenseWeight(len(self.rows[group.rank]), self.width, whole_rows=self.num_rows)

    def forward(self, step: Step) -> Tensor:
        """The rows of the step's tokens, with positions where they are added. Shapes: [T, D]."""
        hidden = self._rows_of(step.token_ids)
        if self.multiplier is not None:
            hidden = hidden * round_factor(self.multiplier, hidden.dtype)
        if self.norm is not None:
            hidden = self.norm(hidden)
        if self.positions is not None:
            hidden = hidden + self.positions(step.positions).to(hidden.dtype)
        return step.tap("embedding.hidden", hidden)

    def _rows_of(self, ids: Tensor) -> Tensor:
        if self.group is None:
            return take_rows(self.table, ids)
        own = self.rows[self.group.rank]
        # What is not here is read as the nearest row that is, and not taken.
        rows = take_rows(self.table, (ids - own.start).clamp(0, len(own) - 1))
        return gather_rows(rows, ids, self.group, [part.start for part in self.rows])

    def cosines(self, vectors: Tensor, *, numbers_at_once: int = 2**20) -> Tensor:
        """Cosines of some vectors with every row of the table, so many of its numbers at a time.

        Shapes: vectors [n, D] -> [n, V] float32.
        """
        if self.group is not None:
            raise division_error(self.group.size)
        directions = vectors.float() / _lengths(vectors.float())
        parts: list[Tensor] = []
        for tile in self.table.tiles(numbers_at_once):
            breathe()
            rows = tile.float()
            parts.append(directions @ rows.T / _lengths(rows).T)
        return torch.cat(parts, dim=1)


class LearnedPositions(nn.Module):
    """A learned vector per position. Source: Radford et al. 2019 (GPT-2).

    Shapes: positions [T] -> [T, D].
    """

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.table: DenseWeight | Packed = DenseWeight(max_length, width)

    def forward(self, positions: Tensor) -> Tensor:
        """The row of each position. Shapes: positions [T] -> [T, D]."""
        return take_rows(self.table, positions)


class SinusoidalPositions(nn.Module):
    """Sines in the first half of a vector and cosines in the second, nothing learned.

    Entry i of a half turns by base ** (-2i / D) per position. The paper interleaves the two,
    which is the same up to the order of entries.

    Shapes: positions [T] -> [T, D] float64.
    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """

    def __init__(self, width: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.width, self.base = width, base

    def forward(self, positions: Tensor) -> Tensor:
        """Sines, then cosines, of each position. Shapes: positions [T] -> [T, D]."""
        pairs = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device)
        turned = positions[:, None] * power(self.base, -pairs / self.width)  # [T, D/2]
        return torch.cat((turned.sin(), turned.cos()), dim=-1)


def _lengths(rows: Tensor) -> Tensor:
    """What divides rows to length one; a row of zeros stays. Shapes: [..., D] -> [..., 1]."""
    return row_sum(rows.square()).sqrt().clamp_min(1e-12)


def round_factor(multiplier: float, dtype: torch.dtype) -> float:
    """A factor as a table of some dtype would hold it: sqrt(3072) is 55.5 in bfloat16."""
    return float(torch.tensor(multiplier, dtype=dtype, device="cpu"))
