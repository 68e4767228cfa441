"""Linear map whose rows are stacked from segments, each with a storage scheme of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.kernels.linear import project
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.scheme import Weight


class Linear(nn.Module):
    """Outputs of all segments side by side.

    Segments exist because real files mix storage types within queries, keys and values.

    Shapes: x [..., K] -> [..., sum of segment rows].
    """

    def __init__(self, in_features: int, rows: Sequence[int], *, has_bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.rows = in_features, tuple(rows)
        self.segments = nn.ModuleList(DenseWeight(count, in_features) for count in rows)
        self.biases = nn.ParameterList(torch.zeros(count) for count in rows) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The results of all segments side by side. Shapes: x [..., K] -> [..., sum of N]."""
        segments = [cast(Weight, segment) for segment in self.segments]
        biases = None if self.biases is None else list(self.biases)
        return project(x, segments, biases)

    def dense(self) -> Tensor:
        """The matrices of all segments, one below the other. Shapes: [sum of segment rows, K]."""
        return torch.cat([cast(Weight, segment).dense() for segment in self.segments])

    def join(self) -> None:
        """Stack dense segments into one matrix: fewer and larger products. For serving."""
        dense = [segment for segment in self.segments if isinstance(segment, DenseWeight)]
        if len(dense) < 2 or len(dense) < len(self.segments):
            return
        stacked = DenseWeight.of(torch.cat([segment.weight.detach() for segment in dense]))
        self.segments = nn.ModuleList([stacked])
