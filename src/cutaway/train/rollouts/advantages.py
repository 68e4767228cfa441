"""From scores of sampled answers to how much better each token was than expected.

Tokens of all answers lie one behind the other; lengths say where answers end. Sums run on the
host in float64: some thousand numbers, in the order of the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

# Scores of a group that differ by less are equal: their rounding must not become an advantage.
LEAST_SPREAD = 1e-6


class Estimates(NamedTuple):
    """What generalised advantage estimation gives for each token. Shapes: [N] each."""

    advantages: Tensor
    returns: Tensor


class GroupEstimates(NamedTuple):
    """Advantages of answers within their groups [B], and how many groups had equal scores."""

    advantages: Tensor
    num_equal: int


def token_rewards(
    scores: Sequence[float], penalties: Tensor, *, lengths: Sequence[int], beta: float
) -> Tensor:
    """A reward for each token: minus beta times its k1 to the reference, and the score at the last.

    penalties: k1 of each token. Shapes: scores [B], penalties [N] -> [N].
    Source: Ouyang et al. 2022, arXiv 2203.02155, equation 2.
    """
    rewards = penalties.detach() * -beta
    ends = torch.tensor(lengths).cumsum(0) - 1
    rewards[ends.to(rewards.device)] += torch.tensor(
        list(scores), dtype=rewards.dtype, device=rewards.device
    )
    return rewards


def estimate(
    rewards: Tensor,
    values: Tensor,
    *,
    lengths: Sequence[int],
    discount: float = 1.0,
    decay: float = 0.95,
    after: Sequence[float] | None = None,
) -> Estimates:
    """Generalised advantage estimation, each answer from its last token back.

    after: the value behind each answer's last token, for answers that were cut and would have
        gone on; by default 0, since nothing comes after an end.

    Shapes: rewards and values [N], after [B].
    Source: Schulman et al. 2015, arXiv 1506.02438, equation 16.
    """
    assert sum(lengths) == len(rewards) == len(values), "a reward and a value for each token"
    gained = cast("list[float]", rewards.double().tolist())
    expected = cast("list[float]", values.detach().double().tolist())
    advantages, start = [0.0] * len(gained), 0
    for index, length in enumerate(lengths):
        following, carried = (0.0 if after is None else after[index]), 0.0
        for t in reversed(range(start, start + length)):
            surprise = gained[t] + discount * following - expected[t]
            carried = surprise + discount * decay * carried
            advantages[t], following = carried, expected[t]
        start += length
    found = torch.tensor(advantages, dtype=torch.float64)
    returns = found + values.detach().double().cpu()
    return Estimates(found.to(values), returns.to(values))


def whiten(advantages: Tensor) -> Tensor:
    """Shifted and scaled to mean 0 and variance 1 over all scored tokens. Shapes: [N] -> [N]."""
    if len(advantages) < 2:
        return advantages - advantages.mean()
    wide = advantages.double()
    whitened = (wide - wide.mean()) * torch.rsqrt(wide.var() + 1e-8)
    return whitened.to(advantages.dtype)


def compare_in_groups(scores: Tensor, *, size: int, is_scaled: bool = True) -> GroupEstimates:
    """How much better each answer is than the mean of its group, in the group's deviations.

    size: answers of a group, which lie one behind the other. Of equal scores nothing is learned.
    is_scaled: divide by the group's deviation; Dr. GRPO does not.

    Shapes: scores [B], B a multiple of size.   Source: Shao et al. 2024, arXiv 2402.03300.
    """
    groups = scores.double().view(-1, size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    spread = groups.std(dim=1, keepdim=True) if size > 1 else torch.zeros_like(centred)
    is_equal = spread < LEAST_SPREAD
    found = (centred / (spread + 1e-4) if is_scaled else centred).masked_fill(is_equal, 0.0)
    return GroupEstimates(found.flatten().to(scores), int(is_equal.sum()))


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Share of the returns' variance that the values foretold; 1 at best, 0 for a constant."""
    if len(returns) < 2 or (spread := returns.double().var()) == 0:
        return 0.0
    return float(1 - (returns - values).double().var() / spread)
