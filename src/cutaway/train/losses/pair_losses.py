"""Losses of pairs, a chosen and a rejected answer: the reward model's, and those of DPO by name.

Each is a sum and a count of pairs. What answers are and how they came is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from cutaway.train.losses.losses import Loss


@dataclass(frozen=True)
class PairLogprobs:
    """Log-probabilities of answers, each summed over its scored tokens, the end token included.

    chosen, rejected: under the trained model.   reference_...: under the frozen one, detached.
    chosen_lengths, rejected_lengths: scored tokens of each answer.

    Shapes: all [B].   Units: nats.
    """

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_lengths: Tensor
    rejected_lengths: Tensor

    @property
    def chosen_shift(self) -> Tensor:
        """How much likelier the chosen answers are than under the reference. Shapes: [B]."""
        return self.chosen - self.reference_chosen

    @property
    def rejected_shift(self) -> Tensor:
        """The same of rejected answers: both fall where likelihood is displaced. Shapes: [B]."""
        return self.rejected - self.reference_rejected

    @property
    def margin(self) -> Tensor:
        """How much more the chosen answers gained than the rejected. Shapes: [B]."""
        return self.chosen_shift - self.rejected_shift

    @property
    def mean_margin(self) -> Tensor:
        """The same with shifts divided by the answers' lengths. Shapes: [B]."""
        chosen = self.chosen_shift / self.chosen_lengths
        return chosen - self.rejected_shift / self.rejected_lengths


@dataclass(frozen=True)
class PairSettings:
    """Numbers of the losses of pairs.

    beta:      how far a margin counts; the less, the further the model may go from the reference.
    smoothing: share of pairs that are taken to be labelled the wrong way round, from 0 to 0.5.
    likelihood: what a chosen answer's mean surprise weighs in `rpo`.
    """

    beta: float = 0.1
    smoothing: float = 0.0
    likelihood: float = 1.0


PairLoss = Callable[[PairLogprobs, PairSettings], Loss]


def sigmoid(pairs: PairLogprobs, settings: PairSettings) -> Loss:
    """DPO's loss, with smoothed labels where that is set. Source: arXiv 2305.18290, equation 7."""
    return _summed(_logistic(settings.beta * pairs.margin, settings.smoothing))


def length_normalised(pairs: PairLogprobs, settings: PairSettings) -> Loss:
    """The same by means over tokens: long answers weigh no more. Source: arXiv 2411.15124."""
    return _summed(_logistic(settings.beta * pairs.mean_margin, settings.smoothing))


def hinge(pairs: PairLogprobs, settings: PairSettings) -> Loss:
    """Nothing once the margin is 1 / beta. Source: Zhao et al. 2023, arXiv 2305.10425."""
    return _summed(relu(1 - settings.beta * pairs.margin))


def ipo(pairs: PairLogprobs, settings: PairSettings) -> Loss:
    """The mean margin's squared distance from 1 / (2 beta): it cannot grow without end.

    Source: Azar et al. 2023, arXiv 2310.12036, equation 17; means over tokens as its authors use.
    """
    return _summed((pairs.mean_margin - 1 / (2 * settings.beta)).square())


def robust(pairs: PairLogprobs, settings: PairSettings) -> Loss:
    """Unbiased under labels of which a share is wrong. Source: arXiv 2403.00409, equation 7."""
    margin, share = settings.beta * pairs.margin, settings.smoothing
    wrong = share * logsigmoid(-margin)
    return _summed((wrong - (1 - share) * logsigmoid(margin)) / (1 - 2 * share))


def rpo(pairs: PairLogprobs, settings: PairSettings) -> Loss:
    """DPO's loss, and the chosen answer's mean surprise. Source: arXiv 2404.19733."""
    surprise = -pairs.chosen / pairs.chosen_lengths
    losses = _logistic(settings.beta * pairs.margin, settings.smoothing)
    return _summed(losses + settings.likelihood * surprise)


PAIR_LOSSES: Mapping[str, PairLoss] = {
    "sigmoid": sigmoid,
    "hinge": hinge,
    "ipo": ipo,
    "robust": robust,
    "length_normalised": length_normalised,
    "rpo": rpo,
}


def bradley_terry(
    chosen: Tensor, rejected: Tensor, *, centring: float = 0.01, margins: Tensor | None = None
) -> Loss:
    """A reward model's loss: the chosen answer should score above the rejected.

    centring: what the square of the two scores' sum weighs, since only differences are told.
    margins:  by how much each pair should differ, where raters said that.

    Shapes: [B] each.   Source: Ouyang et al. 2022, arXiv 2203.02155, equation 1; margins: Touvron
    et al. 2023, arXiv 2307.09288, equation 2; centring: Eisenstein et al. 2023, arXiv 2312.09244.
    """
    lead = chosen - rejected
    losses = -logsigmoid(lead if margins is None else lead - margins)
    return _summed(losses + centring * (chosen + rejected).square())


def _logistic(margins: Tensor, smoothing: float) -> Tensor:
    right, wrong = -logsigmoid(margins), -logsigmoid(-margins)
    return torch.lerp(right, wrong, smoothing)


def _summed(losses: Tensor) -> Loss:
    return Loss(losses.sum(), losses.numel())
