"""How much an answer says again: its n-grams that came before, and how long its end has stood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIZES = (1, 2, 3, 4)
MAX_AGAIN = 64  # tokens of the end that are looked for: longer loops are loops all the same


@dataclass(frozen=True)
class Repeats:
    """Stretches of one size: so many in all, so many of them not for the first time.

    Source: seq-rep-n of Welleck et al. 2019, arXiv 1908.04319, is num_again / num_all.
    """

    size: int
    num_all: int
    num_again: int

    @property
    def share(self) -> float:
        """The share of those that repeat, from 0 to 1; 0 of none."""
        return self.num_again / self.num_all if self.num_all else 0.0


def repeats_of(token_ids: Sequence[int], size: int) -> Repeats:
    """Each stretch of so many tokens, overlapping ones too, against those that began before it."""
    starts = range(len(token_ids) - size + 1)
    distinct = {tuple(token_ids[start : start + size]) for start in starts}
    return Repeats(size, len(starts), len(starts) - len(distinct))


def count_repeated(token_ids: Sequence[int]) -> int:
    """How many tokens at the end stood, in this order, further ahead; at most MAX_AGAIN."""
    longest = 0
    for end in range(len(token_ids) - 1, 0, -1):
        most, size = min(end, MAX_AGAIN), 0
        while size < most and token_ids[end - 1 - size] == token_ids[-1 - size]:
            size += 1
        longest = max(longest, size)
    return longest
