"""From a step's logits to what was drawn for each of its sequences, and to scores of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from cutaway.engine.batch import Batch
from cutaway.engine.running import Running, token_logprob
from cutaway.engine.scheduler import Scheduled
from cutaway.engine.sequence import Sequence
from cutaway.sampling.accept import accept
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.logprobs import prompt_logprobs
from cutaway.sampling.rejection import Guessed, verify
from cutaway.sampling.sampler import PendingDraws, Sampled, Sampler


class SequenceDraws:
    """What the rows of one sequence gave: tokens at once, all else when it is asked for.

    token_ids: None of a row that is bad.   rows: the draws, or what reads them.
    """

    __slots__ = ("_rows", "token_ids")

    def __init__(
        self, token_ids: list[int | None], rows: list[Sampled] | Callable[[], list[Sampled]]
    ) -> None:
        self.token_ids, self._rows = token_ids, rows

    @staticmethod
    def of(rows: list[Sampled]) -> SequenceDraws:
        """Where all is known."""
        return SequenceDraws([each.token_id for each in rows], rows)

    @property
    def rows(self) -> list[Sampled]:
        """The draws themselves."""
        return self._rows() if callable(self._rows) else self._rows


def await_tokens(drawing: PendingDraws, counts: Items[int]) -> list[SequenceDraws]:
    """The tokens that a device drew of each sequence; a launch waits for no more than these.

    counts: rows of each scheduled sequence.
    """
    token_ids, read = drawing.read_tokens(), list[Sampled]()

    def part(first: int, past: int) -> list[Sampled]:
        if not read:
            read.extend(drawing.read())
        return read[first:past]

    drawn: list[SequenceDraws] = []
    first = 0
    for count in counts:
        past = first + count
        drawn.append(SequenceDraws(token_ids[first:past], partial(part, first, past)))
        first = past
    return drawn


def draw(
    sampler: Sampler, batch: Batch, logits: Tensor, answers: Mapping[Sequence, Running]
) -> list[SequenceDraws]:
    """What was drawn for each scheduled sequence; nothing in the middle of a prompt.

    Guesses that a drafter drew itself are verified by rejection: the rows up to the first that
    falls are then drawn anew.
    Shapes: logits [R, V], one row for each of the batch's logit rows.
    """
    logits, rows, counts = select_rows(batch, logits, answers)
    drawn = sampler.sample(logits, rows)
    return verify_guesses(batch, logits, rows, counts, drawn, answers)


def verify_guesses(
    batch: Batch,
    logits: Tensor,
    rows: Items[SamplerRow],
    counts: Items[int],
    drawn: Iterable[Sampled],
    answers: Mapping[Sequence, Running],
) -> list[SequenceDraws]:
    """What plain decoding draws of each sequence's rows, but for guesses with proposals.

    Shapes: logits [R, V].   counts: rows of each scheduled sequence.
    """
    left, first = iter(drawn), 0
    given: list[list[Sampled]] = []
    guessed: dict[int, Guessed] = {}
    for place, (item, count) in enumerate(zip(batch.scheduled, counts, strict=True)):
        own, answer = list(islice(left, count)), answers[item.sequence]
        proposals = answer.proposals[: item.num_drafts]
        if item.is_forked:
            own = longest(item, own)
        elif proposals and answer.told is None:
            guessed[place] = Guessed(first, own, proposals)
        given.append(own)
        first += count
    if guessed:
        verified = verify(logits, rows, list(guessed.values()))
        for place, own in zip(guessed, verified, strict=True):
            given[place] = own
    return [*map(SequenceDraws.of, given)]


def select_rows(
    batch: Batch, logits: Tensor, answers: Mapping[Sequence, Running]
) -> tuple[Tensor, list[SamplerRow], list[int]]:
    """Logits and settings of the rows to sample, and how many each scheduled sequence has."""
    rows: list[SamplerRow] = []
    counts: list[int] = []
    for item in batch.scheduled:
        before = len(rows)
        if item.samples:
            sequence, answer = item.sequence, answers[item.sequence]
            rows += answer.rows(sequence.draft_token_ids[: item.num_drafts])
            if item.is_forked:
                rows += answer.rows(sequence.other_token_ids)
        counts.append(len(rows) - before)
    if len(rows) < batch.num_rows:
        indices = [row for index in range(len(counts)) for row in batch.sample_rows(index)]
        logits = logits[torch.tensor(indices, dtype=torch.int64, device=logits.device)]
    return logits, rows, counts


def longest(item: Scheduled, drawn: Items[Sampled]) -> list[Sampled]:
    """What was drawn along the way on which more guesses stood; the item says which it was.

    Both were drawn with the same numbers, so where they share guesses they share draws.
    drawn: of the rows of both ways.
    """
    sequence, ways = item.sequence, (drawn[: item.count], drawn[item.count :])
    item.took_other = _stood(ways[1], sequence.other_token_ids) > _stood(
        ways[0], sequence.draft_token_ids
    )
    return list(ways[item.took_other])


def _stood(drawn: Items[Sampled], drafts: Items[int]) -> int:
    emitted = take_until_fault([each.token_id for each in drawn])
    return len(accept(emitted, drafts[: len(emitted) - 1])) if emitted else 0


def take_until_fault(token_ids: list[int | None]) -> list[int]:
    """The tokens drawn before the first row that gave none."""
    taken: list[int] = []
    for each in token_ids:
        if each is None:
            break
        taken.append(each)
    return taken


def score_prompts(batch: Batch, logits: Tensor, answers: Mapping[Sequence, Running]) -> None:
    """Log-probabilities of the prompt tokens that this step's rows predict, where they are wanted.

    An answer with NaN or infinity among them is marked as spoilt.

    Shapes: logits [R, V].
    """
    for item, rows in zip(batch.scheduled, batch.rows, strict=True):
        sequence = item.sequence
        known = answers[sequence].prompt_logprobs
        num_wanted = sequence.request.params.prompt_logprobs
        if num_wanted is None:
            continue
        # Row i predicts token start + i + 1. After a preemption some rows come again.
        new_rows = rows[len(known) - item.start - 1 :]
        following = sequence.request.prompt_token_ids[len(known) : len(known) + len(new_rows)]
        if following:
            part = logits[new_rows.start : new_rows.start + len(following)]
            scores = prompt_logprobs(part, following, num_logprobs=num_wanted)
            if any(score.rank is None for score in scores):
                answers[sequence].is_spoilt = True
                continue
            known += map(token_logprob, following, scores)
