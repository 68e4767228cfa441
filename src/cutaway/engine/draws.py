"""From a step's logits to what was drawn for each of its sequences, and to scores of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import islice

import torch
from torch import Tensor

from cutaway.engine.batch import Batch
from cutaway.engine.running import Running, token_logprob
from cutaway.engine.sequence import Sequence
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.logprobs import prompt_logprobs
from cutaway.sampling.sampler import Sampled, Sampler


def draw(
    sampler: Sampler, batch: Batch, logits: Tensor, answers: Mapping[Sequence, Running]
) -> list[list[Sampled]]:
    """What was drawn for each scheduled sequence; nothing in the middle of a prompt.

    Shapes: logits [R, V], one row for each of the batch's logit rows.
    """
    logits, rows, counts = select_rows(batch, logits, answers)
    drawn = iter(sampler.sample(logits, rows))
    return [list(islice(drawn, count)) for count in counts]


def select_rows(
    batch: Batch, logits: Tensor, answers: Mapping[Sequence, Running]
) -> tuple[Tensor, list[SamplerRow], list[int]]:
    """Logits and settings of the rows to sample, and how many each scheduled sequence has."""
    rows: list[SamplerRow] = []
    counts: list[int] = []
    for item in batch.scheduled:
        before = len(rows)
        if item.samples:
            rows += answers[item.sequence].rows(item.num_drafts)
        counts.append(len(rows) - before)
    if len(rows) < batch.num_rows:
        indices = [row for index in range(len(counts)) for row in batch.sample_rows(index)]
        logits = logits[torch.tensor(indices, dtype=torch.int64, device=logits.device)]
    return logits, rows, counts


def take_until_fault(drawn: Items[Sampled]) -> list[int]:
    """The tokens drawn before the first row that gave none."""
    token_ids: list[int] = []
    for each in drawn:
        if each.token_id is None:
            break
        token_ids.append(each.token_id)
    return token_ids


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
