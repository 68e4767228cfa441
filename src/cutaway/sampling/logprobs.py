"""What is reported about a token: its logit, log-probability, rank and the likeliest others.

All of it is of the raw logits, before bias, penalties and temperature. It does not know how the
token was chosen.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates
from cutaway.sampling.integer_weights import log_of_total, total_exponential
from cutaway.sampling.largest import largest
from cutaway.sampling.threads import one_thread


class Score(NamedTuple):
    """One token under the raw distribution of its row.

    rank: 1 + number of tokens with a larger logit; None unless alternatives were asked for.
    top:  token id and log-probability of the likeliest, likeliest first.
    A row with NaN or +inf, or all -inf, has no distribution: its numbers are NaN.
    """

    logit: float
    logsumexp: float
    logprob: float
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()

    @property
    def is_bad(self) -> bool:
        """Whether the row had no distribution."""
        return math.isnan(self.logsumexp)


BAD_SCORE = Score(math.nan, math.nan, math.nan)


def measure(raw: Candidates, token_ids: Tensor, *, num_logprobs: int | None) -> Tensor:
    """The numbers that read_score needs, on the device: [R] -> [R, N] float64.

    float64 holds logits, ids below 2^53 and the exact total alike, so one transfer brings all.
    """
    logits = raw.logits
    logit = logits.gather(1, token_ids[:, None])  # [R, 1]
    total = total_exponential(raw.exponentials)[:, None]
    columns = [column.to(torch.float64) for column in (logit, raw.peak, total)]
    if num_logprobs is not None:
        columns.append(alternatives(logits, logit, num_logprobs))
    return torch.cat(columns, dim=1)


def alternatives(logits: Tensor, logit: Tensor, num_logprobs: int) -> Tensor:
    """How many logits exceed the chosen one, and ids and logits of the likeliest.

    Shapes: logits [R, V], logit [R, 1] -> [R, 1 + 2 * num_logprobs] float64.
    """
    columns = [(logits > logit).sum(dim=-1, keepdim=True)]
    if num_logprobs:
        top = largest(logits, min(num_logprobs, logits.shape[-1]))
        columns += [top, logits.gather(1, top)]
    return torch.cat([column.to(torch.float64) for column in columns], dim=1)


def read_score(numbers: Sequence[float]) -> Score:
    """A score from one row of what measure gave."""
    logit, peak, total = numbers[:3]
    if not math.isfinite(peak):
        return BAD_SCORE
    # In float32, by one formula for every token: the first alternative equals the greedy token.
    # Differences of float32 numbers in float64, rounded, are those of float32 arithmetic.
    logsumexp = _to_float32(peak + log_of_total(total))
    logprob = _to_float32(logit - logsumexp)
    if len(numbers) == 3:
        return Score(logit, logsumexp, logprob)
    num_top = (len(numbers) - 4) // 2
    ids, logits = numbers[4 : 4 + num_top], numbers[4 + num_top :]
    top = tuple(
        (int(token), _to_float32(each - logsumexp)) for token, each in zip(ids, logits, strict=True)
    )
    return Score(logit, logsumexp, logprob, int(numbers[3]) + 1, top)


def rescore(score: Score, logits: Tensor, token_id: int) -> Score:
    """The score of another token of the same row, which is not a bad one. Shapes: logits [V]."""
    logit = float(logits[token_id].float())
    rank = None if score.rank is None else 1 + int((logits.float() > logit).sum())
    logprob = _to_float32(logit - score.logsumexp)
    return score._replace(logit=logit, logprob=logprob, rank=rank)


def read_scores(numbers: NDArray[np.float64]) -> Iterator[Score]:
    """The scores of rows with finite peaks and no alternatives, as read_score gives them.

    Shapes: logit, peak and total of each [R, 3].
    """
    # The logarithm is Python's for every row: NumPy's may differ from it in the last bit.
    logs = np.array(list(map(log_of_total, cast("list[float]", numbers[:, 2].tolist()))))
    logsumexps = (numbers[:, 1] + logs).astype(np.float32).astype(np.float64)
    logprobs = (numbers[:, 0] - logsumexps).astype(np.float32)
    columns = (numbers[:, 0].tolist(), logsumexps.tolist(), logprobs.tolist())
    return map(_SCORE, zip(*columns, repeat(None), repeat(())))


# Of all its fields: a third of the time of a call by name, and one is made for every token.
_SCORE = cast("Callable[[tuple[Any, ...]], Score]", partial(tuple.__new__, Score))


def _to_float32(number: float) -> float:
    # By an array: after a step that swept the caches NumPy takes 40 us more for the first number.
    return array("f", (number,))[0]


@one_thread()
@torch.no_grad()
def prompt_logprobs(
    logits: Tensor, next_token_ids: Sequence[int], *, num_logprobs: int
) -> list[Score]:
    """How likely each next token of a prompt was: row i scores next_token_ids[i].

    Shapes: logits [T, V] of any float type, left as they are.
    """
    assert len(logits) == len(next_token_ids), "one next token per row"
    chosen = upload.integers(next_token_ids, logits)
    size = rows_at_once(logits)
    measured: list[Tensor] = []
    for start in range(0, len(logits), size):
        raw = Candidates(logits[start : start + size].to(torch.float32))
        measured.append(measure(raw, chosen[start : start + size], num_logprobs=num_logprobs))
    rows = (row for part in Sent(measured).parts() for row in part.tolist())
    return [read_score(numbers) for numbers in cast("Iterator[list[float]]", rows)]


class Sent:
    """The rows of all parts [R, N], which may differ in N, on their way to the host at once.

    What is handed to the device afterwards is not waited for.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._shapes = [(part.shape[0], part.shape[1]) for part in parts]
        flat = [part.flatten() for part in parts] or [torch.empty(0)]
        numbers = flat[0] if len(flat) == 1 else torch.cat(flat)  # one in most steps: no kernel
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            numbers = pinned.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._numbers = numbers

    def parts(self) -> Iterator[NDArray[np.float64]]:
        """Each part; the device is waited for first."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers = self._numbers.numpy()
        start = 0
        for num_rows, width in self._shapes:
            past = start + num_rows * width
            yield numbers[start:past].reshape(num_rows, width)
            start = past


def rows_at_once(logits: Tensor) -> int:
    """How many rows to work on together."""
    # On a CPU more rows share the cost of each call and fewer stay in the cache: 32 rows of
    # V = 49152 with top_k and top_p take 45 ms one by one, 25 ms by five, 32 ms all at once.
    # On a GPU the bound is memory: sorting for top_p holds some ten tensors of this size.
    tile = 2**18 if logits.device.type == "cpu" else 2**24
    return max(1, tile // logits.shape[-1])
