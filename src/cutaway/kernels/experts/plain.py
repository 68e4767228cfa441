"""Grouped matrix product over tokens sorted by expert, in plain PyTorch.

Order of summation: a library sums a product of one row otherwise than that of eight, and of eight
otherwise than of eighty. So rows are multiplied in tiles of TILE rows, the last filled up with
zeros: every product has one shape, and a row's result does not depend on the rows beside it.
Measured on a CPU in float32 (MKL, 1 and 2 threads): equal bits for any company. Products of rows
padded to a multiple of 8, or batched by torch.bmm, were not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

TILE = 8  # rows; one row costs as much as eight: little where reading the matrix takes longest


@dataclass(frozen=True)
class Chosen:
    """The step's pairs of token and expert, those of one expert side by side.

    Shapes: rows, places [T * K]; counts has E entries.
    """

    rows: Tensor  # token of each pair
    places: Tensor  # where the pair of token t and its choice k lies: entry t * K + k
    counts: tuple[int, ...]  # pairs of each expert


class Rule(Protocol):
    """Chooses experts by scores.

    Shapes: scores [T, E] -> expert ids [T, K], the best first, and weights [T, K].
    """

    @property
    def num_chosen(self) -> int:
        """K."""
        ...

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]: ...


class GroupedLayers(Protocol):
    """E gated layers, each with rows of its own."""

    @property
    def num_experts(self) -> int:
        """E."""
        ...

    @property
    def gate_up(self) -> object:
        """The stack of matrices before the gate."""
        ...

    @property
    def down(self) -> object:
        """The stack of matrices after it."""
        ...

    @property
    def biases(self) -> Iterable[Tensor] | None:
        """Of both stacks, where they have some. Shapes: [E, 2 F], [E, D]."""
        ...

    @property
    def gate(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Of gate and value, the activation included."""
        ...

    @property
    def is_interleaved(self) -> bool:
        """Whether rows of gate and value stand in turn."""
        ...

    @property
    def num_units(self) -> int:
        """Of each expert, F; where ranks have parts, this one's."""
        ...

    @property
    def num_outputs(self) -> int:
        """Rows of down, D; where ranks have parts, this one's."""
        ...

    def products(self, rows: Tensor, chosen: Chosen) -> Tensor:
        """What the gates give. Shapes: rows [M, D] sorted by expert -> [M, F]."""
        ...

    def results(self, products: Tensor, chosen: Chosen) -> Tensor:
        """What down makes of that. Shapes: [M, F] -> [M, D]."""
        ...


class DenseMatrices(Protocol):
    """A stack of floating-point matrices. Shapes: weight [E, N, K]."""

    @property
    def weight(self) -> Tensor:
        """The numbers."""
        ...


class DenseLayers(GroupedLayers, Protocol):
    """Those whose matrices are plain numbers, as they are learned."""

    @property
    def gate_up(self) -> DenseMatrices:
        """Before the gate."""
        ...

    @property
    def down(self) -> DenseMatrices:
        """After it."""
        ...

    @property
    def split(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Gate and value of the joined rows."""
        ...


def mix_experts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers) -> Tensor:
    """Return the weighted sum of what each row's experts give.

    Shapes: x [T, D]; expert_ids, weights [T, K], the best first -> [T, D].
    """
    chosen = sort_by_expert(expert_ids, experts.num_experts)
    results = experts.results(experts.products(x[chosen.rows], chosen), chosen)
    return add_up(results[chosen.places], expert_ids, weights)


def multiply_units(x: Tensor, expert_ids: Tensor, experts: GroupedLayers) -> Tensor:
    """Return what the gates of each row's experts give, side by side: the first half of that.

    Shapes: x [T, D], expert_ids [T, K] -> [T, K F].
    """
    chosen = sort_by_expert(expert_ids, experts.num_experts)
    return experts.products(x[chosen.rows], chosen)[chosen.places].view(len(x), -1)


def add_results(
    products: Tensor, expert_ids: Tensor, weights: Tensor, experts: GroupedLayers
) -> Tensor:
    """Return the weighted sum of what down makes of such products: the second half.

    Shapes: products [T, K F], expert_ids, weights [T, K], the best first -> [T, D].
    """
    chosen = sort_by_expert(expert_ids, experts.num_experts)
    sorted_rows = products.view(expert_ids.numel(), -1)[chosen.places.argsort()]
    return add_up(experts.results(sorted_rows, chosen)[chosen.places], expert_ids, weights)


def add_up(results: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    """Added up from the best expert to the last: the order is each row's own."""
    parts = results.view(*expert_ids.shape, -1) * weights[..., None]  # [T, K, D]
    update = parts[:, 0]
    for part in parts.unbind(dim=1)[1:]:
        update = update + part
    return update


def count_by_expert(expert_ids: Tensor, num_experts: int) -> Tensor:
    """Pairs of token and expert, by expert. Shapes: expert_ids [T, K] -> [E] int64."""
    return torch.bincount(expert_ids.flatten(), minlength=num_experts)


def sort_by_expert(expert_ids: Tensor, num_experts: int) -> Chosen:
    """Bring pairs in the order of experts, and of tokens where the expert is the same.

    Shapes: expert_ids [T, K].
    """
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)
    counts = cast("list[int]", torch.bincount(flat, minlength=num_experts).tolist())
    return Chosen(order // expert_ids.shape[1], order.argsort(), tuple(counts))


def grouped_linear(
    x_MK: Tensor,
    matrix_of: Callable[[int], Tensor],
    counts: Sequence[int],
    *,
    bias_EN: Tensor | None = None,
) -> Tensor:
    """Multiply each expert's rows with the expert's matrix, transposed, and add its bias.

    Differentiable. Only matrices of experts that have rows are asked for.

    Shapes: x [M, K] sorted by expert, counts of M rows together, matrix_of(e) [N, K] -> [M, N].
    """
    parts: list[Tensor] = []
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        bias = None if bias_EN is None else bias_EN[expert]
        parts.append(tiled_linear(x_MK[start : start + count], matrix_of(expert), bias))
        start += count
    assert start == len(x_MK) > 0, "counts are those of the rows"
    return torch.cat(parts)


def score_experts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A score per expert, computed in float32 or wider.

    Shapes: x [T, D], weight [E, D], bias [E] -> [T, E].
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return tiled_linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map whose result for a row is the same in any company.

    Shapes: x [M, K], weight [N, K], bias [N] -> [M, N].
    """
    num_rows = len(x)
    padded = functional.pad(x, (0, 0, 0, -num_rows % TILE))
    tiles = [functional.linear(tile, weight, bias) for tile in torch.split(padded, TILE)]
    return torch.cat(tiles)[:num_rows]
