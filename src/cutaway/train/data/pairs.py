"""Pairs of answers as tokens: both conversations whole, and of each the last answer scored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cutaway.core.errors import ConfigError, RequestError, TemplateError
from cutaway.text.template import ChatTemplate
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.examples import PreferencePair, read_pairs
from cutaway.train.data.masks import score
from cutaway.train.data.packing import MicroBatch, ScoredSequence, UpdatePlan, fill

_ALIKE = "both answers are the same, so neither is better."


@dataclass(frozen=True)
class ScoredPair:
    """Two answers to one prompt, each with the prompt. place: among all pairs."""

    chosen: ScoredSequence
    rejected: ScoredSequence
    place: int = 0

    @property
    def sides(self) -> tuple[ScoredSequence, ScoredSequence]:
        """The chosen sequence, and the rejected one."""
        return self.chosen, self.rejected

    @property
    def num_tokens(self) -> int:
        """Of both, the prompt twice."""
        return len(self.chosen.token_ids) + len(self.rejected.token_ids)


@dataclass(frozen=True)
class PairBatch:
    """Pairs that go through the model in one forward."""

    pairs: tuple[ScoredPair, ...]

    @property
    def count(self) -> int:
        """Pairs."""
        return len(self.pairs)

    @cached_property
    def answers(self) -> MicroBatch:
        """All chosen sequences, and behind them all rejected ones."""
        chosen = tuple(pair.chosen for pair in self.pairs)
        return MicroBatch(chosen + tuple(pair.rejected for pair in self.pairs))


@dataclass(frozen=True)
class Pairs:
    """Pairs of some files. dropped: left out, by reason. data: a checksum."""

    pairs: tuple[ScoredPair, ...]
    dropped: dict[str, int]
    data: str

    def batches(self, members: Sequence[int], most_tokens: int) -> list[PairBatch]:
        """Some of the pairs in forwards of at most so many tokens, or of one pair."""
        lengths = [self.pairs[index].num_tokens for index in members]
        groups = fill(range(len(members)), lengths, most_tokens)
        return [PairBatch(tuple(self.pairs[members[at]] for at in group)) for group in groups]

    def plan(self, *, seed: int, at_once: int) -> UpdatePlan:
        """Which pairs each update has."""
        return UpdatePlan([1] * len(self.pairs), seed=seed, budget=at_once)


def read_scored_pairs(
    paths: Sequence[Path], template: ChatTemplate, tokenizer: Tokenizer, *, context: int
) -> Pairs:
    """Every pair of some files whose two answers fit.

    Raises: ConfigError naming a file and a line, or that no pair is left.
    """
    pairs: list[ScoredPair] = []
    dropped: dict[str, int] = {}
    digest = hashlib.sha256(tokenizer.fingerprint.encode())
    for path in paths:
        for pair in read_pairs(path):
            try:
                chosen, rejected = _sides(pair, template, tokenizer)
            except (TemplateError, RequestError) as error:
                reason = f"{error}"
            else:
                digest.update(repr((chosen, rejected)).encode())
                if chosen.token_ids == rejected.token_ids:
                    dropped[_ALIKE] = dropped.get(_ALIKE, 0) + 1
                    continue
                longest = max(len(chosen.token_ids), len(rejected.token_ids))
                if longest <= context and chosen.count and rejected.count:
                    pairs.append(ScoredPair(chosen, rejected, len(pairs)))
                    continue
                reason = f"it is longer than {context} tokens, or an answer is empty."
            dropped[reason] = dropped.get(reason, 0) + 1
    if paths and not pairs:
        raise ConfigError(f"data has no pair that can be learned: {', '.join(dropped)}")
    return Pairs(tuple(pairs), dropped, digest.hexdigest())


def _sides(
    pair: PreferencePair, template: ChatTemplate, tokenizer: Tokenizer
) -> tuple[ScoredSequence, ScoredSequence]:
    chosen, rejected = pair.conversations
    before = sum(message.role == "assistant" for message in pair.prompt)
    return (
        last_answer(score(chosen, template, tokenizer), before=before),
        last_answer(score(rejected, template, tokenizer), before=before),
    )


def last_answer(sequence: ScoredSequence, *, before: int = 0) -> ScoredSequence:
    """The sequence up to the end of its last answer, of which no earlier one is scored.

    before: answers that belong to the prompt.
    """
    marks, num_answers = list(sequence.is_scored), 0
    for place, is_scored in enumerate(sequence.is_scored):
        num_answers += is_scored and not sequence.is_scored[place - 1]
        marks[place] = is_scored and num_answers > before
    end = len(marks) - marks[::-1].index(True) if any(marks) else 0
    return ScoredSequence(sequence.token_ids[:end], tuple(marks[:end]))
