"""Linear map whose rows are stacked from segments, each with a storage scheme of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.kernels import native
from cutaway.kernels.capture import Tape
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed
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
        parts = [cast(Weight, segment).multiply(x) for segment in self.segments]
        if self.biases is not None:
            if len(parts) < len(self.biases):  # segments were joined
                return parts[0] + torch.cat(list(self.biases))
            parts = [part + bias for part, bias in zip(parts, self.biases, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def dense(self) -> Tensor:
        """The matrices of all segments, one below the other. Shapes: [sum of segment rows, K]."""
        return torch.cat([cast(Weight, segment).dense() for segment in self.segments])

    def record(
        self,
        tape: Tape,
        x: Tensor,
        out: Tensor,
        *,
        norm: native.Norm | None = None,
        residual: Tensor | None = None,
    ) -> None:
        """out = residual + forward(norm(x)), as one native operation over packed segments."""
        tape.add(
            native.linear(
                x,
                [cast(Packed, segment).packed for segment in self.segments],
                out=out,
                norm=norm,
                biases=None if self.biases is None else list(self.biases),
                residual=residual,
            )
        )

    def join(self) -> None:
        """Stack dense segments into one matrix: fewer and larger products. For serving."""
        dense = [segment for segment in self.segments if isinstance(segment, DenseWeight)]
        if len(dense) < 2 or len(dense) < len(self.segments):
            return
        stacked = DenseWeight.of(torch.cat([segment.weight.detach() for segment in dense]))
        self.segments = nn.ModuleList([stacked])
