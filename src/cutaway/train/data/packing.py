"""Sequences with their scored tokens, and which of them share a forward and an update.

Sequences lie side by side without padding: each attends to itself alone and begins at position 0
(Step.without_cache), so packing changes no loss. Nothing is cropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from cutaway.core.step import Step
from cutaway.train.data.order import permutation


@dataclass(frozen=True)
class ScoredSequence:
    """Token ids, and for each whether its prediction from those before it is scored.

    The first token has none before it, so it is never scored.
    """

    token_ids: tuple[int, ...]
    is_scored: tuple[bool, ...]

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.is_scored), "every token has a mark"
        assert not any(self.is_scored[:1]), "nothing predicts the first token"

    @staticmethod
    def whole(token_ids: Sequence[int]) -> ScoredSequence:
        """A sequence whose every token is scored but the first."""
        return ScoredSequence(
            tuple(token_ids), (False, *[True] * (len(token_ids) - 1))[: len(token_ids)]
        )

    @cached_property
    def count(self) -> int:
        """Scored tokens."""
        return sum(self.is_scored)

    @cached_property
    def num_read(self) -> int:
        """Tokens that predict a scored one or come before such a one; at least one."""
        last = next((i for i in reversed(range(len(self.is_scored))) if self.is_scored[i]), 1)
        return max(1, last)

    @cached_property
    def ids(self) -> Tensor:
        """Its token ids, made once: an update's host work is then no longer than its forward."""
        return torch.tensor(self.token_ids, dtype=torch.int64)

    @cached_property
    def marks(self) -> Tensor:
        """Of each token, whether it is scored. Shapes: [T] bool."""
        return torch.tensor(self.is_scored, dtype=torch.bool)


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that go through the model in one forward."""

    sequences: tuple[ScoredSequence, ...]

    @property
    def count(self) -> int:
        """Scored tokens of all sequences, R."""
        return sum(each.count for each in self.sequences)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, T."""
        return sum(len(each.token_ids) for each in self.sequences)

    def step(self, device: torch.device | str = "cpu", *, is_whole: bool = False) -> Step:
        """The forward's argument; it wants the rows that predict scored tokens, and no others.

        is_whole: states of tokens behind those rows are wanted too.
        """
        rows, sequences = self.rows, [each.ids for each in self.sequences]
        if not is_whole and leaves_out(torch.device(device)):
            read = [each.num_read for each in self.sequences]
            left = [len(ids) - count for ids, count in zip(sequences, read, strict=True)]
            before = torch.tensor([0, *accumulate(left)][:-1])
            rows = rows - before[self.owners()]
            sequences = [ids[:count] for ids, count in zip(sequences, read, strict=True)]
        rows = rows.to(device)
        return Step.without_cache(sequences, device=device, logit_rows=rows, trains=True)

    def targets(self, device: torch.device | str = "cpu") -> Tensor:
        """The scored tokens' ids, in the order of the rows. Shapes: [R] int64."""
        ids = torch.cat([each.ids for each in self.sequences]).to(device)
        return ids[self.rows.to(device) + 1]

    def owners(self, device: torch.device | str = "cpu") -> Tensor:
        """The index of the sequence that each row belongs to. Shapes: [R] int64."""
        counts = torch.tensor([each.count for each in self.sequences], device=device)
        return torch.repeat_interleave(torch.arange(len(counts), device=device), counts)

    @cached_property
    def rows(self) -> Tensor:
        """The tokens that predict a scored one, by one thread: more wait for each other. [R]."""
        marks = np.concatenate([each.marks.numpy() for each in self.sequences])
        return torch.from_numpy(np.flatnonzero(marks) - 1)


def leaves_out(device: torch.device) -> bool:
    """Whether tokens that predict nothing scored, as the last of a sequence, stay out of a forward.

    On a CPU alone: a captured update finds targets among a step's own ids, and what odd lengths
    cost a GPU was not measured.
    """
    return device.type == "cpu"


def cut(sequence: ScoredSequence, context: int) -> list[ScoredSequence]:
    """A sequence in parts of at most context tokens, each scored token in exactly one of them.

    A part begins with the last token of the one before, unscored, so that its first scored token
    is predicted from something.
    """
    assert context >= 2, "a part has a token that predicts and one that is predicted"
    length = len(sequence.token_ids)
    parts: list[ScoredSequence] = []
    for start in range(0, max(1, length - 1), context - 1):
        end = min(length, start + context)
        marks = (False, *sequence.is_scored[start + 1 : end])
        parts.append(ScoredSequence(sequence.token_ids[start:end], marks[: end - start]))
    return parts


class UpdatePlan:
    """Which sequences each update has: an epoch's keyed order, cut where a token budget is full.

    A function of lengths, seed and budget: update u is the same whether or not those before it
    were asked for. An update never spans two epochs.

    Raises: ValueError when one sequence alone is longer than the budget.
    """

    def __init__(self, lengths: Sequence[int], *, seed: int, budget: int) -> None:
        if not lengths or max(lengths) > budget:
            longest = max(lengths, default=0)
            raise ValueError(f"the longest sequence has {longest} tokens, an update {budget}")
        self._lengths, self._seed, self._budget = lengths, seed, budget
        self._firsts = [0]  # first update of each epoch, as far as known
        self._epochs: dict[int, list[list[int]]] = {}

    def members(self, update: int) -> list[int]:
        """Indices of the sequences of an update, in order."""
        epoch = self.epoch(update)
        return self._updates_of(epoch)[update - self._firsts[epoch]]

    def epoch(self, update: int) -> int:
        """The epoch that an update belongs to."""
        while self._firsts[-1] <= update:
            epoch = len(self._firsts) - 1
            self._firsts.append(self._firsts[-1] + len(self._updates_of(epoch)))
        return next(e for e, (_, end) in enumerate(pairwise(self._firsts)) if update < end)

    def _updates_of(self, epoch: int) -> list[list[int]]:
        if epoch not in self._epochs:
            order = permutation(self._seed, epoch, len(self._lengths)).tolist()
            self._epochs = {epoch: list(fill(order, self._lengths, self._budget))}
        return self._epochs[epoch]


def fill(order: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in their order, in groups whose lengths add up to at most the budget."""
    group: list[int] = []
    total = 0
    for index in order:
        if group and total + lengths[index] > budget:
            yield group
            group, total = [], 0
        group.append(index)
        total += lengths[index]
    if group:
        yield group


def micro_batches(sequences: Sequence[ScoredSequence], most_tokens: int) -> list[MicroBatch]:
    """The sequences of an update in forwards of at most so many tokens, or of one sequence."""
    lengths = [len(each.token_ids) for each in sequences]
    groups = fill(range(len(sequences)), lengths, most_tokens)
    return [MicroBatch(tuple(sequences[index] for index in group)) for group in groups]
