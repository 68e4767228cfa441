"""Lower logits for what was already said: repetition, presence and frequency penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates, SamplerRow

_SMALLEST = torch.finfo(torch.float32).tiny
_LARGEST = torch.finfo(torch.float32).max


class Penalties:
    """Repetition over prompt and output, once; then presence and frequency over the output only.

    logit > 0: logit / repetition, else logit * repetition, for each token that occurs at all;
    then minus (frequency * count in the output + presence) for each token of the output, the
    amount computed in float64 and rounded once.

    Units:  repetition is a ratio, 1 is neutral; the others are logits, 0 is neutral.
    Source: Keskar et al. 2019, arXiv 1909.05858 (repetition, with the sign rule of transformers);
            OpenAI API reference (presence, frequency). There is no window: all tokens count.
    """

    name = "penalties"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row has no penalty."""
        return not row.params.has_penalties

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        logits = candidates.logits.clone()
        _repeat(logits, rows)
        _count(logits, rows)
        return Candidates(logits)


def _repeat(logits: Tensor, rows: Sequence[SamplerRow]) -> None:
    """Apply the repetition penalty to every token of prompt and output."""
    token_ids: list[NDArray[np.int64]] = []
    penalties: list[NDArray[np.float64]] = []
    for row in rows:
        penalty = row.params.repetition_penalty
        # A token that occurs twice is written twice, each time from its old logit.
        said = [*row.prompt_token_ids, *row.output_token_ids] if penalty != 1 else []
        token_ids.append(_array(said))
        penalties.append(np.full(len(said), penalty))
    at = _positions(token_ids, logits)
    penalty = upload.floats(np.concatenate(penalties), logits).clamp_(min=_SMALLEST)
    old = logits[at]
    # A tiny penalty must not make infinity, which would count as a broken model.
    logits[at] = torch.where(old > 0, old / penalty, old * penalty).clamp_(max=_LARGEST)


def _count(logits: Tensor, rows: Sequence[SamplerRow]) -> None:
    """Subtract the presence and frequency penalties of every token of the output."""
    token_ids: list[NDArray[np.int64]] = []
    amounts: list[NDArray[np.float64]] = []
    for row in rows:
        ids, counts = np.unique(_array(row.output_token_ids), return_counts=True)
        token_ids.append(ids)
        frequency, presence = row.params.frequency_penalty, row.params.presence_penalty
        amounts.append(counts.astype(np.float64) * frequency + presence)
    logits[_positions(token_ids, logits)] -= upload.floats(np.concatenate(amounts), logits)


def _array(token_ids: Sequence[int]) -> NDArray[np.int64]:
    return np.array(token_ids, dtype=np.int64)


def _positions(token_ids: Sequence[NDArray[np.int64]], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each token, given the tokens of each row."""
    lengths = [len(ids) for ids in token_ids]
    columns = np.concatenate(token_ids)
    assert columns.max(initial=0) < logits.shape[-1], "a token lies outside the vocabulary"
    row_ids = np.repeat(np.arange(len(lengths)), lengths)
    return upload.integers(row_ids, logits), upload.integers(columns, logits)
