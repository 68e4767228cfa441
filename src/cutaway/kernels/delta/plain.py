"""The gated delta rule in plain PyTorch, token after token: the definition that faster forms meet.

The recurrent form alone: its result does not depend on where a chunk ends.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.kernels.elementwise import row_sum, silu


def delta_rule(
    query_THK: Tensor,
    key_THK: Tensor,
    value_THV: Tensor,
    decay_TH: Tensor,
    rate_TH: Tensor,
    state_HKV: Tensor,
) -> tuple[Tensor, Tensor]:
    """Per token and head: S = decay S; S = S + k (rate (v - S^T k))^T; the result is S^T q.

    K and V are the entries of a key and of a value head here.

    Shapes: query, key [T, H, K], value [T, H, V], decay and rate [T, H], state [H, K, V]
            -> results [T, H, V] and the state after the last token.
    Source: Yang et al. 2024, arXiv 2412.06464.
    """
    results: list[Tensor] = []
    state = state_HKV
    for query, key, value, decay, rate in zip(
        query_THK, key_THK, value_THV, decay_TH, rate_TH, strict=True
    ):
        state = state * decay[:, None, None]
        known = key[:, None] @ state  # [H, 1, V]
        missing = (value[:, None] - known) * rate[:, None, None]
        state = state + key[..., None] @ missing
        results.append((query[:, None] @ state)[:, 0])
    return torch.stack(results), state


def short_convolution(inputs: Tensor, weight: Tensor) -> Tensor:
    """Each channel alone: a weighted sum of its last tokens, then SiLU.

    Shapes: inputs [T + width - 1, channels], the earlier tokens first; weight [channels, width]
            -> [T, channels].
    """
    width = weight.shape[1]
    count = len(inputs) - width + 1
    mixed = inputs[:count] * weight[:, 0]  # oldest first: an order that is each token's own
    for tap in range(1, width):
        mixed = mixed + inputs[tap : tap + count] * weight[:, tap]
    return silu(mixed)


def unit_rows(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Rows of length one. Source: the default epsilon is flash-linear-attention's."""
    return x * torch.rsqrt(row_sum(x.square()) + epsilon)
