"""From integer weights and a random integer to a token: the inverse of the cumulative sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.sampling.integer_weights import exact_sum
from cutaway.sampling.largest import CHUNK, in_chunks, pick_chunk

_LOW_32 = 0xFFFFFFFF
_LOW_16 = 0xFFFF


@dataclass(frozen=True, eq=False)
class Draw:
    """One draw per row; every tensor [R] int64.

    token_ids: first id, ascending, whose inclusive cumulative weight exceeds target.
    cumulative: that inclusive cumulative weight.   target: floor(u * total / 2^32).
    """

    token_ids: Tensor
    cumulative: Tensor
    target: Tensor
    total: Tensor


def draw(weights: Tensor, u: Tensor) -> Draw:
    """Draw a token of each row.

    Shapes: weights [R, V] whole numbers in float32, u [R] int64 in [0, 2^32).
    A row that holds NaN gives some valid id.
    """
    # Two levels, sums of chunks and then one chunk: a running sum over V takes five times as long
    # as the sums.
    chunks = in_chunks(weights, 0.0)  # [R, C, CHUNK]
    ends = exact_sum(chunks).cumsum(dim=-1).to(torch.int64)  # [R, C]
    total = ends[:, -1]
    target = multiply_fraction(total, u)
    chunk = _first_above(ends, target)
    running = pick_chunk(chunks, chunk).to(torch.int64).cumsum(dim=-1)  # [R, CHUNK]
    running += ends.gather(1, chunk[:, None]) - running[:, -1:]
    within = _first_above(running, target)
    cumulative = running.gather(1, within[:, None])[:, 0]
    token_ids = (chunk * CHUNK + within).clamp_(max=weights.shape[-1] - 1)
    return Draw(token_ids, cumulative, target, total)


def multiply_fraction(total: Tensor, fraction: Tensor) -> Tensor:
    """floor(total * fraction / 2^32), exact.

    Shapes: int64 [R] each; total below 2^53, fraction from 0 to 2^32 inclusive.
    """
    # total * fraction may need 85 bits: cut both into pieces whose products stay below 2^53.
    high, low = total >> 32, total & _LOW_32
    upper, lower = fraction >> 16, fraction & _LOW_16
    return high * fraction + ((low * upper + (low * lower >> 16)) >> 16)


def _first_above(ascending: Tensor, target: Tensor) -> Tensor:
    """First index of each row whose value exceeds target: [R, N], [R] -> [R]."""
    found = torch.searchsorted(ascending, target[:, None], right=True)[:, 0]
    return found.clamp_(max=ascending.shape[-1] - 1)
