"""Experts in torch's grouped products, for training: nothing is counted on the host.

Equal to plain.mix_experts and plain.score_experts to rounding, forward and backward. The plain form
multiplies tiles of eight rows, so that a row has the same bits in any company; training asks for
speed instead, and a batch of 8,192 tokens has two thousand tiles a matrix.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from cutaway.kernels.experts import plain
from cutaway.kernels.experts.plain import DenseLayers

_ALIGNED = 16  # bytes that a row must be a multiple of, on a GPU


def mix_trainable_experts(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    experts: DenseLayers,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """See plain.mix_experts.

    dtype: of the products, where it is not that of x.
    Shapes: x [T, D]; expert_ids, weights [T, K], the best first -> [T, D].
    """
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)
    is_of = flat[:, None] == torch.arange(experts.num_experts, device=flat.device)
    ends = is_of.sum(dim=0).cumsum(dim=0).to(torch.int32)
    rows = x[order // expert_ids.shape[1]].to(dtype or x.dtype)
    gate_up_bias, down_bias = (
        None if bias is None else bias[flat[order]] for bias in experts.biases or (None, None)
    )
    joined = _grouped(rows, experts.gate_up.weight, ends, gate_up_bias)
    products = experts.gate(*experts.split(joined)).to(rows.dtype)
    results = _grouped(products, experts.down.weight, ends, down_bias)
    return plain.add_up(results[order.argsort()].to(x.dtype), expert_ids, weights)


def score_trainable_experts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.score_experts. Shapes: x [T, D], weight [E, D], bias [E] -> [T, E]."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return functional.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))


def _grouped(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """Each row times its expert's transposed matrix.

    Shapes: rows [M, K] sorted by expert, weight [E, N, K], ends [E], bias [M, N] -> [M, N].
    """
    matrices = weight.to(rows.dtype).transpose(1, 2)
    if rows.is_cuda and any(n * rows.element_size() % _ALIGNED for n in weight.shape[1:]):
        counts = cast("list[int]", ends.diff(prepend=ends.new_zeros(1)).tolist())
        product = plain.grouped_linear(rows, lambda expert: matrices[expert].T, counts)
    else:
        product = functional.grouped_mm(rows, matrices, offs=ends)
    return product if bias is None else product + bias.to(product.dtype)
