"""Losses of answers that a model sampled: PPO's clipped surrogate and value loss, GRPO's forms.

Tokens of all answers lie one behind the other and lengths say where answers end: nothing is
padded, so nothing needs a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cutaway.train.losses.losses import Loss

# How tokens count in GRPO's loss.
#   tokens:  each alike, divided by the tokens of all answers, as DAPO has it.
#   answers: each answer alike, whatever its length, as GRPO was published.
#   dr_grpo: each alike, divided by what no answer can change: the most tokens that each may have.
#   gspo:    one ratio for an answer, from the mean of its log ratios; each answer alike.
# Source: arXiv 2503.14476 (tokens), 2402.03300 (answers), 2503.20783 (dr_grpo), 2507.18071 (gspo).
GroupForm = Literal["tokens", "answers", "dr_grpo", "gspo"]
GROUP_FORMS: tuple[str, ...] = get_args(GroupForm)


@dataclass(frozen=True)
class Clip:
    """How far a token's chance may move before it moves no more: from 1 - low to 1 + high."""

    low: float = 0.2
    high: float = 0.2


def clipped_surrogate(logprobs: Tensor, old: Tensor, advantages: Tensor, clip: Clip) -> Loss:
    """PPO's loss over tokens: what is gained by moving, without a reason to move far.

    Shapes: [N] each; counts tokens.   Source: Schulman et al. 2017, arXiv 1707.06347, equation 7.
    """
    losses = _surrogates(logprobs - old.detach(), advantages, clip)
    return Loss(losses.sum(), losses.numel())


def clipped_value(values: Tensor, old: Tensor, returns: Tensor, *, clip: float = 0.2) -> Loss:
    """Half the squared error of values, which gain nothing by moving further than clip at once.

    The larger of the errors with and without clip counts.

    Shapes: [N] each; counts tokens.
    """
    near = old + (values - old).clamp(-clip, clip)
    errors = torch.maximum((values - returns).square(), (near - returns).square())
    return Loss(errors.sum() / 2, errors.numel())


def group_surrogate(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    *,
    lengths: Sequence[int],
    clip: Clip,
    form: GroupForm = "tokens",
    most_tokens: int = 0,
    penalties: Tensor | None = None,
) -> Loss:
    """GRPO's loss over answers.

    most_tokens: that an answer may have; for dr_grpo.
    penalties: of each token, added to its loss: the KL to the reference, times its weight.

    Shapes: logprobs, old and penalties [N], advantages [B]; count_of says what is counted.
    """
    assert sum(lengths) == len(logprobs) and len(lengths) == len(advantages), "one each"
    sizes = torch.tensor(lengths, device=logprobs.device)
    ratios = logprobs - old.detach()
    if form == "gspo":
        means = torch.segment_reduce(ratios, "sum", lengths=sizes) / sizes
        ratios = means.repeat_interleave(sizes)
    losses = _surrogates(ratios, advantages.repeat_interleave(sizes), clip)
    if penalties is not None:
        losses = losses + penalties
    if form in ("answers", "gspo"):
        losses = losses / sizes.repeat_interleave(sizes)
    return Loss(losses.sum(), count_of(lengths, form, most_tokens=most_tokens))


def count_of(lengths: Sequence[int], form: GroupForm, *, most_tokens: int = 0) -> int:
    """What the loss of a form is divided by: tokens, answers, or the most tokens of each."""
    if form == "tokens":
        return sum(lengths)
    if form == "dr_grpo":
        assert most_tokens > 0, "dr_grpo divides by the most tokens of an answer"
        return len(lengths) * most_tokens
    return len(lengths)


def entropy(logits: Tensor) -> Tensor:
    """How open the choice of each row is. Shapes: [R, V] -> [R].   Units: nats."""
    logprobs = torch.log_softmax(logits, dim=-1)
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(dim=-1)


def num_clipped(logprobs: Tensor, old: Tensor, advantages: Tensor, clip: Clip) -> int:
    """Tokens whose gradient the clip has stopped. Shapes: [N] each."""
    ratios = torch.exp(logprobs.detach() - old)
    is_up = (advantages > 0) & (ratios > 1 + clip.high)
    is_down = (advantages < 0) & (ratios < 1 - clip.low)
    return int((is_up | is_down).sum())


def _surrogates(log_ratios: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    ratios = log_ratios.exp()
    near = ratios.clamp(1 - clip.low, 1 + clip.high)
    return -torch.minimum(ratios * advantages, near * advantages)
