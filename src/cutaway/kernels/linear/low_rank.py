"""Low-rank pairs of adapters beside a linear map: rows of one step may have different ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from cutaway.kernels import native


@dataclass(frozen=True, eq=False)
class LowRankPair:
    """What an adapter adds to one segment: up (down x), its scale in up.

    Shapes: down [rank, K], up [N, rank], in the type in which they are stored.
    Source: Hu et al. 2021, arXiv 2106.09685.
    """

    down: Tensor
    up: Tensor

    @cached_property
    def packed(self) -> native.PackedPair:
        """For native products."""
        return native.PackedPair.of(self.down, self.up)


class LowRankPairs:
    """The pairs of several adapters beside a linear map of several segments.

    rows:       of each segment.
    by_adapter: of each adapter a pair for each segment; None where it adds nothing.
    """

    def __init__(
        self, rows: Sequence[int], by_adapter: Sequence[Sequence[LowRankPair | None] | None]
    ) -> None:
        self.rows = tuple(rows)
        nothing = (None,) * len(self.rows)
        self.by_adapter = tuple(tuple(each or nothing) for each in by_adapter)

    def add_to(self, out: Tensor, x: Tensor, adapters: Tensor) -> Tensor:
        """Products with what each row's adapter adds to them.

        Every adapter of the step multiplies all rows, so that the order of a row's sums hangs on
        the step's shape alone, as that of its products does.

        Shapes: out [T, sum of rows], x [T, K], adapters [T] int64, -1 without one.
        """
        parts = list(cast("tuple[Tensor, ...]", out.split(self.rows, dim=-1)))
        for adapter, pairs in enumerate(self.by_adapter):
            has_it = (adapters == adapter)[:, None]
            if out.device.type == "cpu" and not has_it.any():  # a GPU would be waited for
                continue
            for index, pair in enumerate(pairs):
                if pair is not None:
                    narrow = functional.linear(x, pair.down.to(x.dtype))
                    added = parts[index] + functional.linear(narrow, pair.up.to(x.dtype))
                    parts[index] = torch.where(has_it, added, parts[index])
        return torch.cat(parts, dim=-1)

    @cached_property
    def packed(self) -> native.PackedPairs:
        """For native products."""
        return native.PackedPairs(
            [[None if each is None else each.packed for each in pairs] for pairs in self.by_adapter]
        )
