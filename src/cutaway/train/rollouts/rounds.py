"""Rounds of PPO and GRPO: answers are sampled and scored, and several updates learn from them.

A round begins where the model is and ends updates later; checkpoints lie between rounds, so a run
that goes on samples the very answers that it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.engine.build import device_of
from cutaway.engine.loading.template_of import compiled_template, folder_template
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train import ranks
from cutaway.train.data.packing import MicroBatch, UpdatePlan, fill
from cutaway.train.losses.divergences import k1, k3
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Figure
from cutaway.train.model.adapted_model import AdapterSettings, Reference, with_adapter
from cutaway.train.model.model_folder import open_model
from cutaway.train.model.value_head import Scorer, open_scoring
from cutaway.train.rollouts.rewards import Answered, Task, choose_rewards, read_tasks, total
from cutaway.train.rollouts.rollouts import (
    Rollout,
    Rollouts,
    RolloutSettings,
    agreement,
    load_trained,
)
from cutaway.train.stage import StageSettings, set_precision
from cutaway.train.stage_config import option


@dataclass(frozen=True, kw_only=True)
class RoundSettings(AdapterSettings, StageSettings):
    """What stages that learn from sampled answers are told."""

    model: str = option(help="the folder of the model that is tuned", names_model=True)
    data: tuple[Path, ...] = option(help=".jsonl files with prompt and answer a line")
    held_out: tuple[Path, ...] = option((), help=".jsonl files of tasks to measure on")
    rewards: str = option("", help="verifiers, with commas between them")
    reward_model: str = option("", help="the folder of a reward model", names_model=True)
    verifier: str = option("exact", help="what is measured of held-out tasks")
    prompts: int = option(32, help="prompts of a round", least=1)
    answers: int = option(1, help="answers to each prompt", least=1)
    epochs: int = option(4, help="how often a round's answers are learned from", least=1)
    parts: int = option(1, help="updates of an epoch", least=1)
    temperature: float = option(0.7, help="of sampling and of the loss", least=0.05, most=10.0)
    max_tokens: int = option(64, help="tokens of an answer", least=1)
    beta: float = option(0.05, help="weight of the KL to the model as it began", least=0.0)
    clip: float = option(0.2, help="how far a token's chance may move in a round", least=0.0)
    decay: float = option(0.0, help="weight decay of matrices", least=0.0)
    schedule: str = option("constant", help="the rate's course", choices=("constant", "cosine"))
    step_tokens: int = option(16384, help="tokens of one forward", least=2, changes_run=False)

    @property
    def updates_per_round(self) -> int:
        """Updates that learn from the answers of one round."""
        return self.epochs * self.parts


@dataclass(frozen=True)
class Round:
    """Scored answers of one round, cut into the updates that learn from them.

    parts: of each the forwards.   figures: what is logged with every update.
    """

    parts: tuple[tuple[RoundPart, ...], ...]
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class RoundPart:
    """Answers that go through the model in one forward.

    old, reference: log-probabilities as the round began, under the model and the one that it was
    at first [N].   scores: of the answers [B].
    """

    answers: tuple[Answered, ...]
    batch: MicroBatch
    old: Tensor
    reference: Tensor
    scores: tuple[float, ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each answer."""
        return [len(each.rollout.answer) for each in self.answers]


class Sampling:
    """All that a round is made of: the model, tasks, rewards, and an engine on the same tensors."""

    def __init__(self, settings: RoundSettings) -> None:
        _check(settings)
        if ranks.size() > 1:
            raise ConfigError(
                f"{ranks.size()} processes were started; rounds of sampled answers are made by "
                "one. Start it without torchrun."
            )
        device = device_of(settings.device)
        self.settings = settings
        self.model = with_adapter(
            open_model(settings.model, device=device),
            settings,
            base=settings.model,
            seed=settings.seed,
        )
        set_precision(self.model.transformer, settings)
        folder = Path(settings.model)
        self.tokenizer = load_folder(folder)
        self.scorer = _scorer(settings, self.tokenizer)
        template = compiled_template(
            folder_template(folder), name=settings.model, tokenizer=self.tokenizer
        )
        names = [name.strip() for name in settings.rewards.split(",") if name.strip()]
        room = self.model.architecture.facts.max_length - settings.max_tokens
        self.tasks = read_tasks(
            *(settings.data, template, self.tokenizer), room=room, verifiers=names
        )
        self.held_out = read_tasks(
            *(settings.held_out, template, self.tokenizer), room=room, verifiers=[settings.verifier]
        )
        _check_parts(settings, len(self.tasks.tasks))
        self.reference = Reference.of(self.model)
        self._rewards = choose_rewards(names, [], self.scorer)
        self._verifier = choose_rewards([settings.verifier], [], None, field="verifier")
        self._plan = UpdatePlan(
            [1] * len(self.tasks.tasks), seed=settings.seed, budget=settings.prompts
        )
        longest = max(len(each.token_ids) for each in (*self.tasks.tasks, *self.held_out.tasks))
        sampled = RolloutSettings(temperature=settings.temperature, max_tokens=settings.max_tokens)
        self._rollouts = Rollouts(load_trained(self.model, str(folder)), sampled, longest=longest)

    def round(self, number: int) -> Round:
        """The answers of a round as the model is now; a function of both."""
        settings = self.settings
        tasks = [self.tasks.tasks[index] for index in self._plan.members(number)]
        answers = self._answer(tasks, number, settings.answers)
        found = total(answers, self._rewards)
        groups = _in_parts(len(tasks), settings.parts)
        parts: list[tuple[RoundPart, ...]] = []
        for group in groups:
            first, past = group.start * settings.answers, group.stop * settings.answers
            parts.append(self._parts(answers[first:past], found[first:past]))
        return Round(tuple(parts), self._figures(answers, found, parts))

    def verify(self) -> dict[str, float]:
        """Mean of the verifier on held-out tasks, its share of ended answers, and their length."""
        answers = self._answer(self.held_out.tasks, -1, 1)
        verified = [w for reward, _ in self._verifier for w in reward(answers)]
        count = len(answers)
        lengths = [len(each.rollout.answer) for each in answers]
        parts = self._parts(answers, [0.0] * count)
        moved = sum(float(k3(part.old, part.reference).sum()) for part in parts)
        return {
            "failed": 1 - sum(verified) / count,
            "k3_of_answer": moved / count,
            "ended": sum(each.rollout.is_ended for each in answers) / count,
            "length": sum(lengths) / count,
        }

    def _answer(self, tasks: Sequence[Task], number: int, num_answers: int) -> list[Answered]:
        rollouts = self._rollouts.sample(
            [task.token_ids for task in tasks],
            seed=self.settings.seed,
            round_=number,
            num_answers=num_answers,
        )
        return [
            Answered(rollout, tasks[at // num_answers], self.tokenizer.decode(rollout.answer))
            for at, rollout in enumerate(rollouts)
        ]

    @torch.no_grad()
    def _parts(self, answers: Sequence[Answered], found: Sequence[float]) -> tuple[RoundPart, ...]:
        """Answers in forwards, with both models' log-probabilities of them."""
        lengths = [len(each.rollout.scored.token_ids) for each in answers]
        made: list[RoundPart] = []
        for group in fill(range(len(answers)), lengths, self.settings.step_tokens):
            own = tuple(answers[at] for at in group)
            batch = MicroBatch(tuple(each.rollout.scored for each in own))
            heat = self.settings.temperature
            old = likelihood(self.model.transformer, batch, temperature=heat).log_probs
            with self.reference.use():
                reference = likelihood(
                    self.reference.transformer, batch, temperature=heat
                ).log_probs
            made.append(RoundPart(own, batch, old, reference, tuple(found[at] for at in group)))
        return tuple(made)

    def _figures(
        self,
        answers: Sequence[Answered],
        found: Sequence[float],
        parts: Sequence[Sequence[RoundPart]],
    ) -> dict[str, Figure]:
        count = len(answers)
        flat = [part for each in parts for part in each]
        old, reference = (
            torch.cat([getattr(part, name) for part in flat]) for name in ("old", "reference")
        )
        rollouts: list[Rollout] = [each.rollout for part in flat for each in part.answers]
        met = agreement(rollouts, old)
        verified = [w for reward, _ in self._verifier for w in reward(answers)]
        sums = {
            "reward": sum(found),
            "verified": sum(verified),
            "ended": float(sum(each.rollout.is_ended for each in answers)),
            "length": float(len(old)),
            "k1_of_answer": float(k1(old, reference).sum()),
            "k3_of_answer": float(k3(old, reference).sum()),
        }
        figures = {name: Figure(value, count) for name, value in sums.items()}
        figures["sampler_k3"] = Figure(met.mean_k3, 1)
        figures["sampler_largest"] = Figure(met.largest, 1)
        return figures


class RoundFeed:
    """What a round's updates learn from, by the update's index; a round is sampled at its first."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._number, self._round = -1, Round((), {})

    def __call__(self, update: int) -> tuple[Sequence[RoundPart], Round]:
        """The forwards of an update, and the round that it belongs to."""
        settings = self._sampling.settings
        number, place = divmod(update, settings.updates_per_round)
        if number != self._number:
            assert place == 0, "a run goes on between rounds"
            self._number, self._round = number, self._sampling.round(number)
        return self._round.parts[place % settings.parts], self._round


def _in_parts(count: int, num_parts: int) -> list[range]:
    borders = [count * part // num_parts for part in range(num_parts + 1)]
    return [range(a, b) for a, b in pairwise(borders)]


def _scorer(settings: RoundSettings, tokenizer: Tokenizer) -> Scorer | None:
    if not settings.reward_model:
        return None
    if load_folder(Path(settings.reward_model)).fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"reward_model {quote(settings.reward_model)} has another vocabulary than model "
            f"{quote(settings.model)}; they must share one, since answers are scored by their ids."
        )
    model = open_scoring(settings.reward_model, device=device_of(settings.device))
    return model.scorer.requires_grad_(False)


def _check(settings: RoundSettings) -> None:
    size = settings.updates_per_round
    for name in ("updates", "save_every", "measure_every"):
        value = getattr(settings, name)
        if value % size:
            raise ConfigError(
                f"{name} is {value}; it must be a multiple of epochs times parts, {size}, since "
                "the answers of a round are sampled once."
            )


def _check_parts(settings: RoundSettings, num_tasks: int) -> None:
    """Raise ConfigError where the smallest round of a pass has fewer prompts than parts."""
    smallest = min(num_tasks, settings.prompts)
    if num_tasks > settings.prompts:
        smallest = num_tasks % settings.prompts or settings.prompts
    if smallest < settings.parts:
        raise ConfigError(
            f"parts is {settings.parts}, and {num_tasks} tasks by {settings.prompts} prompts leave "
            f"a round of {smallest}; it must be at most that, or prompts another number."
        )
