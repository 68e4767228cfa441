"""Answers sampled by our own engine, from the very tensors that are trained: ids in, ids out.

No token is ever made text on the way to a loss. The engine draws from the softmax at a temperature
and nothing else, so the sampler's log-probabilities are the trainer's; test_train_rollouts.py
proves it for every way in which the engine computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.train.data.packing import ScoredSequence
from cutaway.train.losses.divergences import k3
from cutaway.train.model.model_folder import TrainedModel, tokenizer_of_model


@dataclass(frozen=True)
class Rollout:
    """One sampled answer.

    log_probs: what the sampler drew each token of the answer with, the temperature applied.
    is_ended:  whether its last token is one that ends answers; else it was cut.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    log_probs: tuple[float, ...]
    is_ended: bool

    @cached_property
    def scored(self) -> ScoredSequence:
        """Prompt and answer as one sequence whose answer is scored, the end token included."""
        marks = (False,) * len(self.prompt) + (True,) * len(self.answer)
        return ScoredSequence(self.prompt + self.answer, marks)


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How answers are sampled.

    There is no top-p and no top-k: they would draw from another distribution than is trained.

    Raises: ConfigError.
    """

    temperature: float = 0.7
    max_tokens: int = 64
    at_once: int = 64

    def __post_init__(self) -> None:
        if not 0.05 <= self.temperature <= 10:
            raise ConfigError(
                f"temperature is {self.temperature}; it must be from 0.05 to 10: training wants "
                "answers that differ."
            )


class Rollouts:
    """An engine beside a trainer, on the same tensors.

    model: float weights that nobody joined or packed.
    longest: tokens of the longest prompt.   engine: settings beside those of rollouts.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: RolloutSettings,
        *,
        longest: int,
        engine: EngineConfig | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        self._settings = settings
        config = replace(engine or EngineConfig(), ledger_bytes=0, max_sequences=settings.at_once)
        each = -(-(longest + settings.max_tokens) // config.page_size)
        self._engine = Engine(
            model,
            config,
            num_pages=1 + settings.at_once * each,
            drafting=drafting,
            scores_drawn=True,
        )
        self._engine.tells_draws = True
        self._is_first = True

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seed: int,
        round_: int,
        num_answers: int = 1,
    ) -> list[Rollout]:
        """Answers to each prompt, those to one prompt behind one another.

        A function of the weights as they are and of seed, round and place: nothing random is kept.
        """
        self._renew()
        for place, prompt in enumerate(prompts):
            params = SamplingParams(
                temperature=self._settings.temperature,
                max_tokens=self._settings.max_tokens,
                seed=derived_seed(seed, round_, place),
                n=num_answers,
            )
            request = Request(request_id=str(place), prompt_token_ids=tuple(prompt), params=params)
            self._engine.add(request)
        return self._collect([tuple(prompt) for prompt in prompts], num_answers)

    def _renew(self) -> None:
        if not self._is_first:
            self._engine.renew_weights()
        self._is_first = False

    def _collect(self, prompts: Sequence[tuple[int, ...]], num_answers: int) -> list[Rollout]:
        count = len(prompts) * num_answers
        ids: list[list[int]] = [[] for _ in range(count)]
        log_probs: list[list[float]] = [[] for _ in range(count)]
        is_ended = [False] * count
        while self._engine.has_work:
            for delta in self._engine.step():
                if delta.error is not None:
                    raise delta.error
                at = int(delta.request_id) * num_answers + delta.choice
                ids[at] += delta.token_ids
                log_probs[at] += [each.logit - each.logsumexp for each in delta.draws]
                if delta.finish_reason is not None:
                    is_ended[at] = isinstance(delta.stopped_by, int)
        return [
            Rollout(prompts[at // num_answers], tuple(ids[at]), tuple(log_probs[at]), is_ended[at])
            for at in range(count)
        ]


def load_trained(model: TrainedModel, name: str) -> LoadedModel:
    """A trained model as the engine wants it; the transformer is the very one."""
    tokenizer = tokenizer_of_model(model)
    parameter = next(model.transformer.parameters())
    ends = tokenizer.eos_token_ids | set(model.architecture.end_token_ids)
    return LoadedModel(
        name=name,
        licence="not stated",
        facts=model.architecture.facts,
        transformer=model.transformer,
        tokenizer=tokenizer,
        template_source=None,
        end_token_ids=frozenset(ends),
        sampling={},
        dtype=parameter.dtype,
        cache_dtype=parameter.dtype,
        device=parameter.device,
    )


def derived_seed(seed: int, *places: int) -> int:
    """A seed for one place among many, which no neighbour shares. Below 2^63."""
    text = ",".join(map(str, (seed, *places)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True)
class Agreement:
    """How far the sampler's log-probabilities are from the trainer's, over all tokens."""

    largest: float
    mean_k3: float


def agreement(rollouts: Sequence[Rollout], log_probs: Tensor) -> Agreement:
    """Compare what the sampler said with what the trainer says. Shapes: log_probs [N]."""
    said = sampled_log_probs(rollouts).to(log_probs)
    found = log_probs.detach()
    return Agreement(float((said - found).abs().max()), float(k3(said, found).double().mean()))


def sampled_log_probs(rollouts: Sequence[Rollout]) -> Tensor:
    """The sampler's own, of all answers one behind the other. Shapes: [N] float32."""
    return torch.tensor([each for rollout in rollouts for each in rollout.log_probs])
