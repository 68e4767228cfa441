"""What a model writes while it learns: the same prompts each time, by the engine that serves."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.core.errors import ConfigError
from cutaway.train.model.model_folder import TrainedModel
from cutaway.train.rollouts.rollouts import Rollouts, RolloutSettings, load_trained

TOKENS = 48  # of a sample


class Samples:
    """An engine on the tensors that are trained, and what is asked of it.

    prompts: ids, a sample for each.
    Raises: ConfigError for a prompt that leaves no room in the model's longest sequence.
    """

    def __init__(self, model: TrainedModel, prompts: Sequence[Sequence[int]], *, seed: int) -> None:
        loaded = load_trained(model, "trained")
        self._tokenizer = loaded.tokenizer
        longest, most = max(map(len, prompts)), model.architecture.facts.max_length
        if longest >= most:
            raise ConfigError(
                f"samples has a text of {longest} tokens; it must have fewer than {most}, the "
                "model's longest sequence."
            )
        settings = RolloutSettings(max_tokens=min(TOKENS, most - longest), at_once=len(prompts))
        self._rollouts = Rollouts(loaded, settings, longest=longest)
        self._prompts, self._seed = prompts, seed

    def of(self, model: TrainedModel) -> Samples:
        """The same of another model that has its tokenizer."""
        return Samples(model, self._prompts, seed=self._seed)

    def write(self, update: int) -> list[str]:
        """A sample for each prompt: a function of the weights, the seed and the update."""
        drawn = self._rollouts.sample(self._prompts, seed=self._seed, round_=update)
        return [self._tokenizer.decode(each.answer) for each in drawn]
