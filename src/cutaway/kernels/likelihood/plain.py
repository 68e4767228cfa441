"""Log-probabilities of entries of logits and their gradient, in plain PyTorch.

Neither is differentiated by torch: trainable.py puts the two together.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scores(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each row's target, and the log of the sum of the row's exponentials.

    temperature: what logits are divided by.
    Shapes: logits [R, V], targets [R] int64 -> [R] each, in float32 or wider.
    """
    wide = _wide(logits, temperature)
    sums = wide.logsumexp(dim=-1)
    return wide.gather(-1, targets[:, None])[:, 0] - sums, sums


def of_logits(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    of_found: Tensor,
    of_sums: Tensor,
    temperature: float,
) -> Tensor:
    """The gradient by the logits, where it is known by what scores gave.

    sums: the second of what it gave.
    Shapes: logits [R, V], all others [R] -> [R, V] in the dtype of logits.
    """
    shares = (_wide(logits, temperature) - sums[:, None]).exp()
    places = torch.arange(logits.shape[1], device=logits.device)
    is_target = (places == targets[:, None]).to(shares.dtype)
    pulled = is_target * of_found[:, None] + shares * (of_sums - of_found)[:, None]
    return (pulled / temperature if temperature != 1.0 else pulled).to(logits.dtype)


def _wide(logits: Tensor, temperature: float) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1.0 else wide / temperature
