"""Every loss: a sum over what is scored, and the count that it is to be divided by.

Nothing here takes a mean. The loop divides by one count, of the whole update over all its
micro-batches, so how an update was cut into micro-batches changes neither loss nor gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from cutaway.train.losses.likelihood import Likelihood


@dataclass(frozen=True)
class Figure:
    """A number to be logged: total / count, over all micro-batches of an update.

    total: may still be on a device; mean waits for it, and nothing before.
    """

    total: float | Tensor
    count: int

    def __add__(self, other: Figure) -> Figure:
        return Figure(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """The number itself."""
        return float(self.total) / self.count if self.count else 0.0


@dataclass(frozen=True)
class Loss:
    """A differentiable sum, its count, and further numbers to be logged beside it.

    count: of scored tokens, pairs or whatever the stage divides by; known before the forward.
    """

    total: Tensor
    count: int
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])


def cross_entropy(given: Likelihood, *, z_weight: float = 0.0) -> Loss:
    """Negative log-likelihood of the scored tokens, in nats.

    z_weight: of the squared log-sums, which keeps logits near 0 (1e-4 is usual).
    Source of the z-loss: Chowdhery et al. 2022, arXiv 2204.02311, section 5.
    """
    total = -given.log_probs.sum()
    count = given.log_probs.numel()
    figures = {"nats": Figure(total.detach().double(), count)}
    if z_weight:
        total = total + z_weight * given.log_sums.square().sum()
    return Loss(total, count, figures)
