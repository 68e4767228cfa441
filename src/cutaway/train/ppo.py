"""PPO with a leash: a policy, a critic, a frozen reference, and a reward at each answer's end.

Each token pays beta times how much likelier it is than under the reference (k1); the score comes
at the last token. The critic begins as the reward model where there is one, else as the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cutaway.engine.build import device_of
from cutaway.train.losses.divergences import k1, k3
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.losses.policy_losses import Clip, clipped_surrogate, clipped_value, num_clipped
from cutaway.train.model.model_folder import TrainedModel
from cutaway.train.model.value_head import (
    ScoringModel,
    copy_model,
    open_scoring,
    values,
    with_scores,
)
from cutaway.train.rollouts.advantages import estimate, explained_variance, token_rewards, whiten
from cutaway.train.rollouts.rounds import RoundFeed, RoundPart, RoundSettings, Sampling
from cutaway.train.stage import TrainingStage
from cutaway.train.stage_config import option

_CRITIC = "critic"


@dataclass(frozen=True, kw_only=True)
class PpoSettings(RoundSettings):
    """What PPO is told."""

    discount: float = option(1.0, help="what a later reward counts", least=0.0, most=1.0)
    gae_decay: float = option(0.95, help="lambda of advantages", least=0.0, most=1.0)
    value_weight: float = option(0.1, help="weight of the critic's loss", least=0.0)
    value_clip: float = option(0.2, help="how far a value may move in a round", least=0.0)


@dataclass(frozen=True, kw_only=True)
class ActorCritic(TrainedModel):
    """The policy, and the critic that lies beside it in checkpoints."""

    policy: TrainedModel
    critic: ScoringModel

    def write(self, folder: Path) -> None:
        """The policy's files, and the critic's in a folder among them. Raises: OSError."""
        self.policy.write(folder)
        (folder / _CRITIC).mkdir()
        self.critic.write(folder / _CRITIC)

    def finish(self, folder: Path) -> None:
        """The policy alone: nobody asks the critic any more. Raises: OSError."""
        self.policy.finish(folder)

    def load(self, folder: Path) -> None:
        """Take up what write() wrote."""
        self.policy.load(folder)
        self.critic.load(folder / _CRITIC)


@dataclass(frozen=True)
class PolicyBatch:
    """Answers of one forward: advantages, returns and the critic's values, of each token [N]."""

    part: RoundPart
    advantages: Tensor
    returns: Tensor
    values: Tensor
    figures: Mapping[str, Figure]

    @property
    def count(self) -> int:
        """Tokens of the answers."""
        return self.part.batch.count


def prepare(
    settings: PpoSettings, say: Callable[[str], None] = print
) -> TrainingStage[PolicyBatch]:
    """The stage that settings describe, ready to run.

    Raises: ConfigError, ModelError and its kinds, TemplateError.
    """
    sampling = Sampling(settings)
    critic = _critic(settings, sampling.model)
    model = ActorCritic(
        transformer=sampling.model.transformer,
        architecture=sampling.model.architecture,
        config=sampling.model.config,
        small_files=sampling.model.small_files,
        policy=sampling.model,
        critic=critic,
    )
    rounds = RoundFeed(sampling)
    clip = Clip(settings.clip, settings.clip)
    estimated: dict[int, list[list[PolicyBatch]]] = {}
    del say

    def feed(update: int) -> Sequence[PolicyBatch]:
        number, place = divmod(update, settings.updates_per_round)
        _, round_ = rounds(update)
        if number not in estimated:
            estimated.clear()
            estimated[number] = judge(round_.parts, round_.figures, critic, settings)
        return estimated[number][place % settings.parts]

    def objective(batch: PolicyBatch) -> Loss:
        part = batch.part
        new = likelihood(model.transformer, part.batch, temperature=settings.temperature).log_probs
        policy = clipped_surrogate(new, part.old, batch.advantages, clip)
        value = clipped_value(
            values(critic.scorer, part.batch), batch.values, batch.returns, clip=settings.value_clip
        )
        ratios = torch.exp(new.detach() - part.old)
        count = len(new)
        figures = {
            **batch.figures,
            "policy_loss": Figure(float(policy.total.detach()), count),
            "value_loss": Figure(float(value.total.detach()), count),
            "moved_k3": Figure(float(k3(part.old, new.detach()).sum()), count),
            "ratio": Figure(float(ratios.sum()), count),
            "clipped": Figure(num_clipped(new, part.old, batch.advantages, clip), count),
        }
        return Loss(policy.total + settings.value_weight * value.total, count, figures)

    return TrainingStage(
        name="ppo",
        settings=settings,
        model=model,
        module=nn.ModuleDict({"policy": model.transformer, "critic": critic.scorer}),
        data=sampling.tasks.data,
        feed=feed,
        objective=objective,
        measure=sampling.verify if sampling.held_out.tasks else None,
    )


@torch.no_grad()
def judge(
    parts: Sequence[Sequence[RoundPart]],
    figures: Mapping[str, Figure],
    critic: ScoringModel,
    settings: PpoSettings,
) -> list[list[PolicyBatch]]:
    """Advantages of a whole round, whitened over all its tokens, in the round's own parts."""
    flat = [part for each in parts for part in each]
    found = [values(critic.scorer, part.batch) for part in flat]
    estimates = [
        estimate(
            token_rewards(
                part.scores, k1(part.old, part.reference), lengths=part.lengths, beta=settings.beta
            ),
            value,
            lengths=part.lengths,
            discount=settings.discount,
            decay=settings.gae_decay,
        )
        for part, value in zip(flat, found, strict=True)
    ]
    whitened = whiten(torch.cat([each.advantages for each in estimates]))
    told = explained_variance(torch.cat(found), torch.cat([each.returns for each in estimates]))
    all_figures = {**figures, "explained_variance": Figure(told, 1)}
    own = torch.split(whitened, [len(each.advantages) for each in estimates])
    made = iter(
        PolicyBatch(part, advantages, each.returns, value, all_figures)
        for part, advantages, each, value in zip(flat, own, estimates, found, strict=True)
    )
    return [[next(made) for _ in each] for each in parts]


def _critic(settings: PpoSettings, model: TrainedModel) -> ScoringModel:
    if not settings.reward_model:
        return with_scores(copy_model(model), seed=settings.seed)
    return open_scoring(settings.reward_model, device=device_of(settings.device))
