"""Steps on a CPU by native kernels: the model recorded once, replayed for every step."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.blocks.positions import Frequencies, angles
from cutaway.blocks.transformer import Transformer
from cutaway.core.step import LayerCache, Numbers, Step
from cutaway.engine.model import LoadedModel
from cutaway.kernels.capture import PAGE_DTYPES, Rotation, Tape


def can_record(model: LoadedModel) -> bool:
    """Whether native kernels can run the model's steps over a cache of its dtype."""
    return model.transformer.can_record and model.cache_dtype in PAGE_DTYPES


class NativeSteps:
    """One recording of the model over its pages.

    num_tokens: the most tokens of a step; as many rows may want logits.
    keeps:      whether inner values are there for a sink to read; same bits, more memory.
    """

    def __init__(
        self,
        model: Transformer,
        caches: tuple[LayerCache, ...],
        *,
        num_tokens: int,
        max_length: int,
        keeps: bool = False,
    ) -> None:
        self.keeps = keeps
        self._tape = Tape(num_tokens=num_tokens, num_rows=num_tokens, keeps=keeps)
        self._rotations = {
            each: _rotation(each, num_tokens=num_tokens, max_length=max_length)
            for each in model.frequencies
        }
        self._logits = model.record(self._tape, caches, self._rotations)
        self._wanted = self._logits[:1]
        # Angles of a step's own lengths are computed in torch, from its tensors.
        self.takes_numbers = not any(each.is_by_token for each in self._rotations.values())

    def run(self, step: Step) -> Tensor:
        """Logits of the rows that the step wants. Shapes: [R, V], valid until the next run."""
        for frequencies, rotation in self._rotations.items():
            if rotation.is_by_token:
                cos, sin = angles(frequencies, step.positions, step.declared_lengths, torch.float32)
                count = len(step.token_ids)
                rotation.cos[:count].copy_(cos)
                rotation.sin[:count].copy_(sin)
        self._tape.run(step)
        return self._rows(step.logit_rows.shape[0])

    def run_numbers(self, numbers: Numbers) -> Tensor:
        """The same of a step without a sink, for which no tensor is made."""
        assert self.takes_numbers, "angles of each token are computed from a step's tensors"
        self._tape.run_numbers(numbers)
        return self._rows(len(numbers.logit_rows))

    def _rows(self, num_rows: int) -> Tensor:
        if self._wanted.shape[0] != num_rows:  # a view takes time, and decoding wants one for long
            self._wanted = self._logits[:num_rows]
        return self._wanted

    def time(self, step: Step) -> dict[str, float]:
        """Run a step and give the seconds of each kind of operation."""
        return self._tape.time(step)


def _rotation(frequencies: Frequencies, *, num_tokens: int, max_length: int) -> Rotation:
    """Cosines and sines of every position, or room for those of a step's tokens."""
    inverse = frequencies.inverse(torch.tensor([1, max_length]))
    # One row of frequencies for all lengths: then angles depend on the position alone.
    if len(inverse) > 1:
        room = torch.zeros(2, num_tokens, inverse.shape[1])
        return Rotation(room[0], room[1], is_by_token=True)
    positions = torch.arange(max_length)
    cos, sin = angles(frequencies, positions, positions, torch.float32)
    return Rotation(cos.contiguous(), sin.contiguous())
