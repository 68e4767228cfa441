"""Mixture of experts: a router sends each token through a few of many feed-forward layers.

A token's result does not depend on the tokens beside it, bit for bit; see kernels/experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.activations import Gate
from cutaway.blocks.linear import Division, Linear, division_error
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.router import Router
from cutaway.blocks.slots import Norm
from cutaway.core.shards import cuts, widths
from cutaway.core.step import Step
from cutaway.core.weight_targets import KeptRows
from cutaway.kernels.elementwise import sigmoid
from cutaway.kernels.experts import (
    Chosen,
    add_results,
    count_by_expert,
    grouped_linear,
    mix_experts,
    mix_trainable_experts,
    multiply_units,
    stays_on_device,
)
from cutaway.kernels.experts.plain import DenseLayers
from cutaway.kernels.gate import silu_gate
from cutaway.kernels.gather import Gatherer, gather_columns
from cutaway.quantize.dense_stack import DenseStack, Stack

Split = Callable[[Tensor], tuple[Tensor, Tensor]]  # [M, 2F] -> gate and value [M, F]


def halves(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """The gate's entries first, then the value's."""
    gate, value = gate_up.chunk(2, dim=-1)
    return gate, value


def neighbours(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """An entry of the gate and one of the value in turn, as gpt-oss keeps them."""
    return gate_up[..., 0::2], gate_up[..., 1::2]


class Experts(nn.Module):
    """E gated feed-forward layers, their matrices in two stacks, which a loader may replace.

    split: how the rows of the joined matrix alternate between gate and value.

    Shapes: rows [M, D] sorted by expert -> [M, D].
    """

    def __init__(
        self,
        num_experts: int,
        width: int,
        inner: int,
        *,
        gate: Gate = silu_gate,
        split: Split = halves,
        has_bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_experts, self.width, self.inner = num_experts, width, inner
        self.gate_up = DenseStack(num_experts, 2 * inner, width)
        self.down = DenseStack(num_experts, width, inner)
        self.gate, self.split = gate, split
        rows = (2 * inner, width) if has_bias else None
        self.biases = rows and nn.ParameterList(torch.zeros(num_experts, n) for n in rows)
        self.num_units, self.num_outputs = inner, width
        self.divisions: tuple[Division, Division] | None = None  # of units and results

    def divide(self, group: Gatherer) -> Mapping[str, KeptRows]:
        """Keep a rank's units of every expert, and its rows of every down: none is hot.

        With fewer units than ranks all of them stay whole everywhere.
        Returns: by parameter the rows that are kept.
        """
        if min(self.inner, self.width) < group.size:
            return {}
        units, outputs = cuts(self.inner, group.size), cuts(self.width, group.size)
        own, down_rows = units[group.rank], outputs[group.rank]
        if self.is_interleaved:
            ranges = (range(2 * own.start, 2 * own.stop),)
        else:
            ranges = (own, range(own.start + self.inner, own.stop + self.inner))
        self.num_units, self.num_outputs = len(own), len(down_rows)
        self.gate_up = DenseStack(self.num_experts, 2 * self.num_units, self.width)
        self.down = DenseStack(self.num_experts, self.num_outputs, self.inner)
        if self.biases is not None:
            counts = (2 * self.num_units, self.num_outputs)
            self.biases = nn.ParameterList(torch.zeros(self.num_experts, n) for n in counts)
        self.divisions = (Division(group, (widths(units),)), Division(group, (widths(outputs),)))
        gate_up = KeptRows(ranges, axis=1, total=2 * self.inner)
        down = KeptRows((down_rows,), axis=1, total=self.width)
        kept = {"gate_up.weight": gate_up, "down.weight": down}
        return kept if self.biases is None else kept | {"biases.0": gate_up, "biases.1": down}

    def products(self, rows: Tensor, chosen: Chosen) -> Tensor:
        """What the gates give. Shapes: rows [M, D] sorted by expert -> [M, F]."""
        gate_up_bias, _ = self.biases or (None, None)
        gate_up = cast(Stack, self.gate_up)
        joined = grouped_linear(
            rows,
            lambda expert: gate_up.matrix(expert, rows.dtype),
            chosen.counts,
            bias_EN=gate_up_bias,
        )
        return self.gate(*self.split(joined))

    def results(self, products: Tensor, chosen: Chosen) -> Tensor:
        """What down makes of that. Shapes: products [M, F] sorted by expert -> [M, D]."""
        _, down_bias = self.biases or (None, None)
        down = cast(Stack, self.down)
        return grouped_linear(
            products,
            lambda expert: down.matrix(expert, products.dtype),
            chosen.counts,
            bias_EN=down_bias,
        )

    def forward(self, rows: Tensor, chosen: Chosen) -> Tensor:
        """Put each row through its expert. Shapes: rows [M, D] sorted by expert -> [M, D]."""
        return self.results(self.products(rows, chosen), chosen)

    def mix(
        self, x: Tensor, expert_ids: Tensor, weights: Tensor, *, trains: bool = False
    ) -> Tensor:
        """The weighted sum of what each row's experts give, gathered where ranks have parts.

        trains: whether it takes the quick differentiable form.
        Shapes: x [T, D]; expert_ids, weights [T, K], the best first -> [T, D].
        """
        if trains and self.is_dense:
            dtype = self.gate_up.product_dtype
            return mix_trainable_experts(
                x, expert_ids, weights, cast(DenseLayers, self), dtype=dtype
            )
        if self.divisions is None:
            return mix_experts(x, expert_ids, weights, self)
        (group, (units,)), outputs = self.divisions
        group.check()
        products = multiply_units(x, expert_ids, self)
        products = gather_columns(products, group, (units,) * expert_ids.shape[1])
        return gather_columns(add_results(products, expert_ids, weights, self), *outputs)

    def check_whole(self) -> None:
        """Raise ConfigError where ranks have parts of it."""
        if self.divisions is not None:
            raise division_error(self.divisions[0].group.size)

    @property
    def is_interleaved(self) -> bool:
        """Whether rows of gate and value stand in turn."""
        return self.split is neighbours

    @property
    def is_dense(self) -> bool:
        """Whether all of its matrices are here as plain numbers."""
        stacks = cast("tuple[object, object]", (self.gate_up, self.down))
        return self.divisions is None and all(isinstance(each, DenseStack) for each in stacks)

    @property
    def stays_on_device(self) -> bool:
        """Whether its products ask the host nothing; ranks gather through it."""
        return self.divisions is None and stays_on_device(self)

    def sides(self, rows: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        """What one expert's activation gets, and what it is multiplied with.

        Shapes: rows [M, D] -> [M, F] each.
        """
        self.check_whole()
        joined = rows @ cast(Stack, self.gate_up).matrix(expert, rows.dtype).T
        if self.biases:
            joined = joined + self.biases[0][expert]
        return self.split(joined)

    def columns(self, expert: int) -> Tensor:
        """What each unit of an expert adds for a product of 1. Shapes: [F, D]."""
        self.check_whole()
        return cast(Stack, self.down).matrix(expert, torch.float32).T


class MixtureOfExperts(nn.Module):
    """Weighted sum of the chosen experts' results, and the shared layer's for every token.

    Taps: blocks.experts.ids [T, K], blocks.experts.weights [T, K] and blocks.experts.counts [E],
    the step's pairs of token and expert. A sink that returns other ids or weights routes anew.

    shared_gate: one row that says, by a sigmoid, how much of the shared layer counts.
    norms: before and after the shared layer, then before and after the experts, where each has
    norms of its own, as in Gemma 4; the router reads what comes in.

    Shapes: hidden [T, D] -> [T, D].
    Source: Shazeer et al. 2017, arXiv 1701.06538; shared experts: Dai et al. 2024, 2401.06066.
    """

    def __init__(
        self,
        router: Router,
        experts: Experts,
        shared: GatedMLP | None = None,
        *,
        shared_gate: Linear | None = None,
        norms: tuple[Norm, Norm, Norm, Norm] | None = None,
    ) -> None:
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared
        self.shared_gate = shared_gate
        self.shared_norm, self.shared_after_norm, self.experts_norm, self.experts_after_norm = (
            norms or (nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity())
        )

    def forward(self, hidden: Tensor, step: Step, layer: int) -> Tensor:
        """The weighted sum of what each token's experts give, with the shared one where it is.

        Shapes: hidden [T, D] -> [T, D].
        """
        expert_ids, weights = self.router(hidden, trains=step.trains)
        expert_ids = step.tap("blocks.experts.ids", expert_ids, layer)
        weights = step.tap("blocks.experts.weights", weights, layer)
        if step.sink is not None:
            counts = count_by_expert(expert_ids, self.experts.num_experts)
            step.tap("blocks.experts.counts", counts, layer)
        update = self.experts.mix(
            self.experts_norm(hidden), expert_ids, weights, trains=step.trains
        )
        update = self.experts_after_norm(update)
        if self.shared is None:
            return update
        shared = self.shared_after_norm(self.shared(self.shared_norm(hidden), step, layer))
        if self.shared_gate is not None:
            shared = shared * sigmoid(self.shared_gate(hidden, step.adapters))
        return update + shared
