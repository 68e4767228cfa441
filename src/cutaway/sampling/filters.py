"""Temperature and the cuts: min_p, top_k, top_p. Each is neutral for a greedy row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.sampling.draw import multiply_fraction
from cutaway.sampling.integer_weights import exact_sum
from cutaway.sampling.largest import largest


class Temperature:
    """Divide the logits, after the largest was subtracted: above 1 flattens, below 1 sharpens.

    Shapes: logits [R, V] float32 -> [R, V]; the largest becomes 0, so nothing overflows upwards.
    Units:  temperature from 1e-5 to 5, 1 is neutral; below 1e-5 the row is greedy.
    """

    name = "temperature"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row is greedy or its temperature is 1."""
        return row.params.is_greedy or row.params.temperature == 1

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        temperature = upload.floats([[row.params.temperature] for row in rows], candidates.logits)
        return Candidates((candidates.logits - candidates.peak) / temperature)


class MinP:
    """Drop tokens far less likely than the most likely one.

    Keeps token t of a row when weight(t) >= min_p * largest weight of that row, with min_p as a
    whole number of 2^-24, so that the floor is exact in float32.

    Shapes: weights [R, V] -> [R, V]; dropped entries are 0.
    Units:  min_p is a ratio from 0 to 1; 0 keeps every token.
    Source: Nguyen et al. 2024, arXiv 2407.01082.
    """

    name = "min_p"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row is greedy or its min_p is 0."""
        return row.params.is_greedy or row.params.min_p == 0

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        weights = candidates.weights
        floor = upload.floats([[min_p_floor(row.params.min_p)] for row in rows], weights)
        # 1 where weight >= floor, else 0: both are whole numbers. A comparison and a masked fill
        # take five times as long on a CPU.
        is_kept = (weights - floor).add_(1.0).clamp_(min=0.0, max=1.0)
        return Candidates(candidates.logits, is_kept.mul_(weights))


class TopK:
    """Keep the k largest logits; among equals the smaller id.

    Shapes: logits [R, V] -> weights [R, V]; dropped entries are 0.
    Units:  k counts tokens; 0, -1 and anything from V up keep every token.
    Source: Fan et al. 2018, arXiv 1805.04833.
    """

    name = "top_k"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row is greedy or its top_k keeps every token."""
        return row.params.is_greedy or row.params.top_k <= 0

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        logits = candidates.logits
        counts = [min(row.params.top_k, logits.shape[-1]) for row in rows]
        indices = largest(logits, max(counts))  # [R, K], the likeliest first
        weights = candidates.weights_at(indices)
        if min(counts) < max(counts):
            rank = torch.arange(max(counts), device=logits.device)
            weights = weights * (rank < upload.integers([[count] for count in counts], logits))
        return Candidates(logits, _spread(weights, indices, logits))


class TopP:
    """Keep the smallest set of likeliest tokens whose mass reaches p.

    Order: weight descending, then smaller id. A token stays while the cumulative weight before
    it is < p * total, with p as a whole number of 2^-32; exact. The first always stays.

    Shapes: weights [R, V] -> [R, V]; dropped entries are 0.
    Units:  p is a ratio from 0 to 1; 1 keeps every token, 0 only the first.
    Source: Holtzman et al. 2020, arXiv 1904.09751.
    """

    name = "top_p"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row is greedy or its top_p is 1."""
        return row.params.is_greedy or row.params.top_p == 1

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        weights = candidates.weights
        # What lies before a kept token is less than p * total: total - floor((1 - p) * total),
        # which is p * total rounded up.
        rest = upload.integers([top_p_rest(row.params.top_p) for row in rows], weights)
        total = exact_sum(weights).to(torch.int64)
        bound = (total - multiply_fraction(total, rest)).to(torch.float64)[:, None]
        indices = _likeliest(weights, bound)
        kept = weights.gather(1, indices)
        before = kept.cumsum(dim=-1, dtype=torch.float64) - kept
        is_kept = before < bound
        is_kept[:, 0] = True
        return Candidates(candidates.logits, _spread(kept * is_kept, indices, weights))


def min_p_floor(min_p: float) -> float:
    """The least weight that stays, where the largest is 2^30; exact in float32."""
    return round(min_p * 2**24) * 2.0**6


def top_p_rest(top_p: float) -> int:
    """What may be dropped of a mass of 2^32."""
    return 2**32 - round(top_p * 2**32)


def _likeliest(weights: Tensor, bound: Tensor) -> Tensor:
    """Indices of the heaviest tokens, in order, at least so many that they reach bound."""
    size = weights.shape[-1]
    # On a CPU the likeliest 128 mostly suffice and take a third (V = 49152) to a tenth (V = 128256)
    # of sorting all. On a GPU the host would have to wait for the answer; sorting is cheaper.
    if weights.device.type == "cpu" and size > 128:
        indices = largest(weights, 128)
        if bool((exact_sum(weights.gather(1, indices))[:, None] >= bound).all()):
            return indices
    return largest(weights, size)


def _spread(kept: Tensor, indices: Tensor, like: Tensor) -> Tensor:
    """Weights [R, K] at indices [R, K], 0 elsewhere: [R, V]."""
    return torch.zeros_like(like).scatter_(1, indices, kept)
