"""A packed speculator by native kernels: its layer recorded once, replayed for every guess.

Module by module a guess takes some hundred small calls of torch, longer than it reads weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cutaway.blocks.positions import angles
from cutaway.core.step import LayerCache, Step
from cutaway.engine.loading.speculator_folder import LoadedSpeculator
from cutaway.kernels import capture
from cutaway.kernels.capture import Tape
from cutaway.kernels.given_rows import GivenRows, given_rows
from cutaway.kernels.linear import take_rows
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
        module, table = speculator.module, speculator.embedding.table
        width = speculator.embedding.width
        self._given = GivenRows(width, torch.empty(0, width))
        self.most_tokens, self.most_rows = max(MOST_TOKENS, num_rows), num_rows

        def forward(step: Step) -> Tensor:
            tokens = take_rows(table, step.token_ids)
            both, residual = module.inputs(given_rows(self._given, step.token_ids), tokens)
            frequencies = module.attention.frequencies
            assert frequencies is not None and step.streams is not None, "it is recorded so"
            rotation = angles(frequencies, step.positions, step.declared_lengths, torch.float32)
            made = module.finish(residual, module.attention(both, rotation, step, 0), step)
            step.streams(made, 0)
            return module.read(made[step.logit_rows])

        self._tape = Tape(
            forward,
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

        self._given.rows = states
        self._tape.run(replace(step, streams=take))
        return made[0], self._tape.result[: len(step.logit_rows)]


def can_be_recorded(speculator: LoadedSpeculator) -> bool:
    """Whether all that it multiplies with is packed."""
    return capture.is_available() and isinstance(speculator.module.head, Packed)
