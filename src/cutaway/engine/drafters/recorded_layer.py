"""A packed speculator by native kernels: its layer recorded once, replayed for every guess.

Module by module a guess takes some hundred small calls of torch, longer than it reads weights.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from cutaway.blocks.guessing_layer import FromGivenStates
from cutaway.core.step import LayerCache, Step
from cutaway.engine.loading.speculator_folder import LoadedSpeculator
from cutaway.kernels import capture
from cutaway.kernels.capture import Tape
from cutaway.quantize.packed import Packed

MOST_TOKENS = 128  # of a step; what catches up with a longer text goes module by module


class RecordedLayer:
    """One recording of a speculator over its pages.

    num_rows: the most answers of a step.   max_length: positions are below it.
    """

    def __init__(
        self,
        speculator: LoadedSpeculator,
        caches: tuple[LayerCache, ...],
        *,
        num_rows: int,
        max_length: int,
    ) -> None:
        self._forward = FromGivenStates(speculator.module, speculator.embedding)
        self.most_tokens, self.most_rows = max(MOST_TOKENS, num_rows), num_rows
        self._tape = Tape(
            self._forward,
            caches,
            num_tokens=self.most_tokens,
            num_rows=num_rows,
            max_length=max_length,
            streams=frozenset({0}),
        )

    @property
    def torch_calls(self) -> tuple[str, ...]:
        """What runs in torch, in order."""
        return self._tape.torch_calls

    def run(self, states: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """What follows each token, as a state, and what those say whose rows the step wants.

        Shapes: states [T, D] -> [T, D] and [R, drafted]; the latter is valid until the next run.
        """
        made: list[Tensor] = []

        def take(value: Tensor, layer: int) -> None:
            made.append(value.clone())

        self._forward.put(states)
        self._tape.run(replace(step, streams=take))
        return made[0], self._tape.result[: len(step.logit_rows)]


def can_be_recorded(speculator: LoadedSpeculator) -> bool:
    """Whether all that it multiplies with is packed."""
    return capture.is_available() and isinstance(speculator.module.head, Packed)
