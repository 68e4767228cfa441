"""Mixture of experts: a router sends each token through a few of many feed-forward layers.

A token's result does not depend on the tokens beside it, bit for bit; see kernels/experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.activations import Gate
from cutaway.blocks.linear import Linear
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.router import Router
from cutaway.blocks.slots import Norm
from cutaway.core.step import Step
from cutaway.kernels.elementwise import sigmoid
from cutaway.kernels.experts import Chosen, count_by_expert, grouped_linear, mix_experts
from cutaway.kernels.gate import silu_gate
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

    def forward(self, rows: Tensor, chosen: Chosen) -> Tensor:
        """Put each row through its expert. Shapes: rows [M, D] sorted by expert -> [M, D]."""
        gate_up_bias, down_bias = self.biases or (None, None)
        gate_up, down = cast(Stack, self.gate_up), cast(Stack, self.down)
        joined = grouped_linear(
            rows,
            lambda expert: gate_up.matrix(expert, rows.dtype),
            chosen.counts,
            bias_EN=gate_up_bias,
        )
        return grouped_linear(
            self.gate(*self.split(joined)),
            lambda expert: down.matrix(expert, rows.dtype),
            chosen.counts,
            bias_EN=down_bias,
        )

    @property
    def is_interleaved(self) -> bool:
        """Whether rows of gate and value stand in turn."""
        return self.split is neighbours

    def sides(self, rows: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        """What one expert's activation gets, and what it is multiplied with.

        Shapes: rows [M, D] -> [M, F] each.
        """
        joined = rows @ cast(Stack, self.gate_up).matrix(expert, rows.dtype).T
        if self.biases:
            joined = joined + self.biases[0][expert]
        return self.split(joined)

    def columns(self, units: Tensor, expert: int) -> Tensor:
        """What each of some units of an expert adds for a product of 1. Shapes: [M] -> [M, D]."""
        return cast(Stack, self.down).matrix(expert, torch.float32).T[units]


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
        expert_ids, weights = self.router(hidden)
        expert_ids = step.tap("blocks.experts.ids", expert_ids, layer)
        weights = step.tap("blocks.experts.weights", weights, layer)
        if step.sink is not None:
            counts = count_by_expert(expert_ids, self.experts.num_experts)
            step.tap("blocks.experts.counts", counts, layer)
        update = mix_experts(self.experts_norm(hidden), expert_ids, weights, self.experts)
        update = self.experts_after_norm(update)
        if self.shared is None:
            return update
        shared = self.shared_after_norm(self.shared(self.shared_norm(hidden), step, layer))
        if self.shared_gate is not None:
            shared = shared * sigmoid(self.shared_gate(hidden, step.adapters))
        return update + shared
