"""Linear map whose rows are stacked from segments, each with a storage scheme of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from cutaway.core.errors import ConfigError
from cutaway.core.shards import cuts, widths
from cutaway.kernels.dispatch import learns_in_triton
from cutaway.kernels.gate import Gate, fused_number
from cutaway.kernels.gather import Gatherer, gather_columns
from cutaway.kernels.heads import HeadPlaces
from cutaway.kernels.linear import (
    LowRankPair,
    LowRankPairs,
    Matrix,
    NormingMatrix,
    linear,
    native_product,
    product_behind_norm,
    project,
    trainable_product,
)
from cutaway.kernels.norm.late import LateLearnedNorm, LateNorm
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.floats8 import KeptFloats8
from cutaway.quantize.integers import KeptIntegers
from cutaway.quantize.scheme import Weight

__all__ = ["Linear", "LowRankPair", "LowRankPairs"]


class Linear(nn.Module):
    """Outputs of all segments side by side.

    Segments exist because real files mix storage types within queries, keys and values.

    Shapes: x [..., K] -> [..., sum of segment rows].
    """

    def __init__(self, in_features: int, rows: Sequence[int], *, has_bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.rows = in_features, tuple(rows)
        self.kept: tuple[tuple[range, ...], ...] | None = None  # rows of each segment; None: all
        self.segments = nn.ModuleList(DenseWeight(count, in_features) for count in rows)
        self.pairs: LowRankPairs | None = None  # of adapters that serve beside the weights
        self.biases = nn.ParameterList(torch.zeros(count) for count in rows) if has_bias else None
        self.group: Gatherer | None = None  # of the ranks that have other rows
        self.division: Division | None = None  # where results are gathered

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of each segment's rows; results are gathered. Before weights are set.

        What has fewer rows than there are ranks stays whole everywhere.
        """
        parts = [cuts(rows, group.size) for rows in self.rows]
        if min(self.rows) >= group.size:
            self.keep([(part[group.rank],) for part in parts], group)
            self.division = Division(group, tuple(map(widths, parts)))

    def keep(self, kept: Sequence[tuple[range, ...]], group: Gatherer) -> None:
        """Keep some rows of each segment: the results are theirs alone. Before weights are set.

        group: of the ranks that have the others.
        """
        self.kept, self.group = tuple(kept), group
        counts = [sum(map(len, rows)) for rows in kept]
        self.segments = nn.ModuleList(
            DenseWeight(count, self.in_features, whole_rows=rows)
            for count, rows in zip(counts, self.rows, strict=True)
        )
        if self.biases is not None:
            self.biases = nn.ParameterList(torch.zeros(count) for count in counts)

    def forward(
        self, x: Tensor | LateNorm, adapters: Tensor | None = None, *, trains: bool = False
    ) -> Tensor:
        """The results of all segments side by side.

        adapters: which adapter each row has, as Step has them.
        trains: in training dense segments and their biases are one product.
        Shapes: x [..., K], adapters [T] -> [..., sum of N].
        """
        if isinstance(x, LateNorm):
            rows = self._with_norm(x, adapters)
            if rows is not None:
                return rows
            x = x.take()
        if self.group is not None:
            self.group.check()
        biases = None if self.biases is None else list(self.biases)
        dense = self.learned if trains else None
        if dense is not None:
            rows = _one_product(x, dense, biases)
        else:
            segments: list[Matrix] = [cast(Weight, segment) for segment in self.segments]
            adapters = None if self.pairs is None else adapters
            rows = project(x, segments, biases, self.pairs, adapters)
        return rows if self.division is None else gather_columns(rows, *self.division)

    @property
    def learned(self) -> list[DenseWeight] | None:
        """The matrices, where all of them are kept as they are and no adapter is beside them."""
        dense = [each for each in self.segments if isinstance(each, DenseWeight)]
        return dense if self.pairs is None and len(dense) == len(self.segments) else None

    def behind_gate(self, sides: Tensor, gate: Gate) -> Tensor | None:
        """The product with a gate's result, in training, for which the gate's sides are kept alone.

        None where it cannot be one operation. Shapes: sides [T, 2 K] -> [T, sum of N].
        """
        dense, number = self.learned, fused_number(gate)
        if dense is None or number is None or self.biases is not None or self.group is not None:
            return None
        weights = [each.weight for each in dense]
        dtype = dense[0].product_dtype or weights[0].dtype
        if sides.dtype != dtype or not learns_in_triton(sides, *weights):
            return None
        return trainable_product(sides, weights, dtype=dtype, gate=number)

    def gate_halves(
        self, x: Tensor | LateNorm, gate: Gate, adapters: Tensor | None = None
    ) -> Tensor:
        """A gate of the first half of the results and the second.

        Shapes: x [..., K], adapters [T] -> [..., half of the sum of N].
        """
        if isinstance(x, LateNorm):
            product = self._with_norm(x, adapters, gate)
            if product is not None:
                return product
        return gate(*self(x, adapters).chunk(2, dim=-1))

    def place_heads(
        self, x: LateNorm, places: HeadPlaces, adapters: Tensor | None = None
    ) -> Tensor | None:
        """The queries, where the product itself puts heads in their places; else None.

        Shapes: x [1, K] -> [1, H, C].
        """
        return self._with_norm(x, adapters, places)

    def _with_norm(
        self, x: LateNorm, adapters: Tensor | None, after: Gate | HeadPlaces | None = None
    ) -> Tensor | None:
        """The product with the norm in it; None where something stands between the two."""
        if isinstance(x, LateLearnedNorm):
            return self._with_learned_norm(x)
        is_whole = self.group is None and self.biases is None and len(self.segments) == 1
        if not is_whole or (self.pairs is not None and adapters is not None):
            return None
        segment = self.segments[0]
        if not isinstance(segment, NormingMatrix):
            return None
        return segment.multiply_normed(x, after)

    def _with_learned_norm(self, x: LateLearnedNorm) -> Tensor | None:
        dense = self.learned
        if (
            dense is None
            or self.biases is not None
            or self.group is not None
            or x.hidden.dim() != 2
        ):
            return None
        weights = [each.weight for each in dense]
        is_alike = x.dtype == (dense[0].product_dtype or weights[0].dtype)
        return product_behind_norm(x, weights) if is_alike else None

    def dense(self) -> Tensor:
        """The matrices of all segments, one below the other. Shapes: [sum of segment rows, K].

        Raises: ConfigError where they are divided among ranks.
        """
        if self.group is not None:
            raise division_error(self.group.size)
        parts = [cast(Weight, segment).dense() for segment in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def join(self) -> None:
        """Stack segments that are stored alike into one matrix: fewer and larger products.

        For serving.
        """
        parts = cast(list[Any], list(self.segments))
        for kind in (DenseWeight, KeptIntegers, KeptFloats8):
            if len(parts) > 1 and all(isinstance(part, kind) for part in parts):
                stacked = kind.stack(parts)
                if stacked is not None:
                    self.segments = nn.ModuleList([stacked])
                return

    def precede(self, following: Linear) -> None:
        """Name the map that a step computes behind this one, of which memory may fetch a part."""
        matrices = [*self.segments, *following.segments]
        if len(matrices) == 2 and all(isinstance(each, KeptIntegers) for each in matrices):
            first, second = cast(list[KeptIntegers], matrices)
            first.precede(second)


def division_error(num_ranks: int) -> ConfigError:
    """What is said to those who want a whole matrix where each rank has some of its rows."""
    return ConfigError(
        f"this reads whole matrices, which are divided among {num_ranks} ranks here. Start with "
        "tensor 1 for it."
    )


class Division(NamedTuple):
    """Among whom rows are divided, and how many each rank has of each segment."""

    group: Gatherer
    widths: tuple[tuple[int, ...], ...]


def _one_product(x: Tensor, dense: Sequence[DenseWeight], biases: list[Tensor] | None) -> Tensor:
    """One product for all segments, which rounds otherwise than theirs; gradients reach each."""
    dtype = dense[0].product_dtype or dense[0].weight.dtype
    x = x.to(dtype)
    weights = [each.weight for each in dense]
    if biases is None and x.dim() == 2 and learns_in_triton(x, *weights):
        return trainable_product(x, weights, dtype=dtype)
    made = native_product(x, weights, biases)
    if made is not None:
        return made
    parts = [each.to(dtype) for each in weights]
    weight = parts[0] if len(parts) == 1 else torch.cat(parts)
    if biases is None:
        return linear(x, weight)
    bias = biases[0] if len(biases) == 1 else torch.cat(biases)
    if bias.dtype == dtype:
        return linear(x, weight, bias)
    return linear(x, weight) + bias
