"""How far two distributions over the vocabulary are apart: estimates from samples, and whole ones.

Reported and leashed on is k3; in rewards stands k1; as a loss ratio * k3, whose gradient is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cutaway.train.losses.losses import Loss

# Teacher's and student's log-probabilities [R, V] to a number for each row [R].
Divergence = Callable[[Tensor, Tensor], Tensor]


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(model || reference) at sampled tokens: unbiased, and of either sign.

    Shapes: log-probabilities of sampled tokens [N] each -> [N].   Units: nats.
    """
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Half the squared log ratio: biased, never negative, with the right gradient as a loss."""
    return (logprobs - reference).square() / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Unbiased and never negative: r - 1 - log r, r the reference's ratio to the model.

    Source: Schulman 2020, "Approximating KL divergence".
    """
    log_ratio = reference - logprobs
    return torch.expm1(log_ratio) - log_ratio


def kl_penalties(logprobs: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """KL(model || reference) to be descended at tokens that the old model sampled: ratio * k3.

    The gradient goes through the ratio too: k1 alone has none, k3 alone that of the other KL.

    Shapes: [N] each -> [N].
    """
    return torch.exp(logprobs - old.detach()) * k3(logprobs, reference.detach())


def forward_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student): the student covers all that the teacher says.

    Shapes: log-probabilities [R, V] each -> [R].   Units: nats.
    """
    return _kl(teacher, student)


def reverse_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(student || teacher): the student says nothing that the teacher would not."""
    return _kl(student, teacher)


def jensen_shannon(teacher: Tensor, student: Tensor) -> Tensor:
    """The mean of both KLs to the distribution halfway: at most ln 2."""
    middle = torch.logaddexp(teacher, student) - math.log(2)
    return (_kl(teacher, middle) + _kl(student, middle)) / 2


DIVERGENCES: Mapping[str, Divergence] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
}


def distances(
    teacher: Tensor,
    student: Tensor,
    *,
    divergence: Divergence = forward_kl,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Tensor:
    """How far each row of a student's logits is from a teacher's.

    temperature: of both; the square of it keeps gradients of one size.
    top_k: compare the teacher's likeliest tokens, and all others as one.

    Shapes: logits [R, V] each -> [R].   Source: Hinton et al. 2015, arXiv 1503.02531.
    """
    wide = torch.promote_types(student.dtype, torch.float32)
    theirs = torch.log_softmax(teacher.detach().to(wide) / temperature, dim=-1)
    ours = torch.log_softmax(student.to(wide) / temperature, dim=-1)
    if top_k is not None and top_k < theirs.shape[-1] - 1:
        kept = theirs.topk(top_k, dim=-1).indices
        theirs, ours = _with_rest(theirs, kept), _with_rest(ours, kept)
    return temperature**2 * divergence(theirs, ours)


def acceptance(teacher: Tensor, student: Tensor) -> Tensor:
    """How often a speculative sampler would keep the student's draft: sum of min(p, q).

    Shapes: log-probabilities [R, V] each -> [R].   Source: Leviathan et al. 2022, arXiv 2211.17192.
    """
    return torch.minimum(teacher, student).exp().sum(dim=-1)


def draft_loss(
    teacher: Tensor, passes: list[Tensor], *, decay: float = 0.8, rows: list[Tensor] | None = None
) -> Loss:
    """A speculator's loss: soft cross-entropy of each pass over its own states, later ones less.

    Shapes: the target's logits [R, V], those of each pass [R, V]; counts rows.
    rows: of the target's that each pass has, where these are not all [at most R] int64.
    Source: Li et al. 2025, arXiv 2503.01840 (training-time test).
    """
    wide = torch.promote_types(teacher.dtype, torch.float32)
    wanted = torch.softmax(teacher.detach().to(wide), dim=-1)
    total = wanted.new_zeros(())
    for index, logits in enumerate(passes):
        own = wanted if rows is None else wanted[rows[index]]
        surprise = -(own * torch.log_softmax(logits.to(wide), dim=-1)).sum()
        total = total + decay**index * surprise
    return Loss(total, len(teacher))


def _kl(left: Tensor, right: Tensor) -> Tensor:
    # Where left has no weight it adds nothing, whatever right has: -inf - -inf would be NaN, and
    # stay one in the gradient unless it is replaced before the product.
    weights = left.exp()
    return (weights * (left - right).masked_fill(weights == 0, 0.0)).sum(dim=-1)


def _with_rest(logprobs: Tensor, kept: Tensor) -> Tensor:
    """The kept tokens and, last, all others together. Shapes: [R, V], [R, K] -> [R, K + 1]."""
    some = logprobs.gather(-1, kept)
    others = logprobs.scatter(-1, kept, -torch.inf)
    return torch.cat([some, torch.logsumexp(others, dim=-1, keepdim=True)], dim=-1)
