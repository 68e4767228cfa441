"""GRPO: several answers to each prompt, and the better ones of a group become likelier.

No critic: what an answer should have been worth is the mean of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.train.losses.divergences import k3, kl_penalties
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.losses.policy_losses import (
    GROUP_FORMS,
    Clip,
    GroupForm,
    count_of,
    group_surrogate,
    num_clipped,
)
from cutaway.train.rollouts.advantages import compare_in_groups
from cutaway.train.rollouts.rounds import Round, RoundFeed, RoundPart, RoundSettings, Sampling
from cutaway.train.stage import TrainingStage
from cutaway.train.stage_config import option


@dataclass(frozen=True, kw_only=True)
class GrpoSettings(RoundSettings):
    """What GRPO is told. beta 0, the default, asks no reference; DAPO's clip is wider upwards."""

    answers: int = option(8, help="answers to each prompt", least=2)
    epochs: int = option(1, help="how often a round's answers are learned from", least=1)
    beta: float = option(0.0, help="weight of the KL to the model as it began", least=0.0)
    clip_high: float = option(0.28, help="how far a chance may rise in a round", least=0.0)
    form: str = option("tokens", help="how tokens count", choices=GROUP_FORMS)


@dataclass(frozen=True)
class GroupBatch:
    """Answers of one forward with their advantages [B]."""

    part: RoundPart
    advantages: Tensor
    count: int
    figures: Mapping[str, Figure]


def prepare(
    settings: GrpoSettings, say: Callable[[str], None] = print
) -> TrainingStage[GroupBatch]:
    """The stage that settings describe, ready to run.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    sampling = Sampling(settings)
    rounds = RoundFeed(sampling)
    clip = Clip(settings.clip, settings.clip_high)
    form: GroupForm = settings.form  # type: ignore[assignment]
    del say

    def feed(update: int) -> list[GroupBatch]:
        parts, round_ = rounds(update)
        return batches(parts, round_, settings, form)

    def objective(batch: GroupBatch) -> Loss:
        part = batch.part
        new = likelihood(
            sampling.model.transformer, part.batch, temperature=settings.temperature
        ).log_probs
        penalties = None
        if settings.beta:
            penalties = settings.beta * kl_penalties(new, part.old, part.reference)
        loss = group_surrogate(
            new,
            part.old,
            batch.advantages,
            lengths=part.lengths,
            clip=clip,
            form=form,
            most_tokens=settings.max_tokens,
            penalties=penalties,
        )
        each = batch.advantages.repeat_interleave(torch.tensor(part.lengths).to(new.device))
        figures = {
            **batch.figures,
            "moved_k3": Figure(float(k3(part.old, new.detach()).sum()), len(new)),
            "clipped": Figure(num_clipped(new, part.old, each, clip), len(new)),
        }
        return Loss(loss.total, loss.count, figures)

    return TrainingStage(
        name="grpo",
        settings=settings,
        model=sampling.model,
        data=sampling.tasks.data,
        feed=feed,
        objective=objective,
        measure=sampling.verify if sampling.held_out.tasks else None,
    )


def batches(
    parts: Sequence[RoundPart], round_: Round, settings: GrpoSettings, form: GroupForm
) -> list[GroupBatch]:
    """The forwards of an update. Groups are compared whole, however forwards cut them."""
    scores = torch.tensor([score for part in parts for score in part.scores], dtype=torch.float64)
    found = compare_in_groups(scores, size=settings.answers, is_scaled=form != "dr_grpo")
    num_groups = len(scores) // settings.answers
    figures = {**round_.figures, "equal_groups": Figure(found.num_equal, num_groups)}
    made: list[GroupBatch] = []
    start = 0
    for part in parts:
        own = found.advantages[start : start + len(part.scores)].to(part.old)
        start += len(part.scores)
        count = count_of(part.lengths, form, most_tokens=settings.max_tokens)
        made.append(GroupBatch(part, own, count, figures))
    return made
