"""Byte-pair merges of one piece, lowest rank first; ids only, no text and no vocabulary file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

from cutaway.host.turns import breathe

Pair = tuple[int, int]

NO_MERGE = 1 << 62  # above every rank

_GONE = -1  # merged into its left neighbour


class MergeTable(Protocol):
    """Which neighbours may merge, in which order, and into what."""

    @property
    def merged_ids(self) -> Sequence[int]:
        """merged_ids[rank] is the token that the merge of that rank makes."""
        ...

    def rank(self, pair: Pair, absent: int, /) -> int:
        """Rank of a pair, or absent if the two never merge."""
        ...

    def describe(self) -> str:
        """The table in words that differ when the merges do, beside the same tokens."""
        ...


class PairMerges:
    """Merges listed pair by pair, as in tokenizer.json and GGUF: only listed pairs merge."""

    def __init__(self, ranks: dict[Pair, int], merged_ids: Sequence[int]) -> None:
        self.merged_ids = merged_ids
        # The dict's own method: a call less in the innermost loop.
        self.rank = ranks.get
        self._ranks = ranks

    def describe(self) -> str:
        """The table in words: every pair by rank, and what it becomes."""
        return f"pairs {sorted(self._ranks, key=self._ranks.__getitem__)} {[*self.merged_ids]}"


class RankMerges:
    """Merges implied by a rank file: two neighbours merge if their bytes are a token."""

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self.token_ids = {token: token_id for token_id, token in token_bytes.items()}
        self.merged_ids: Sequence[int] = range(max(token_bytes) + 1)

    def rank(self, pair: Pair, absent: int, /) -> int:
        """The id of the token that both make together, or absent if there is none."""
        left, right = pair
        return self.token_ids.get(self._token_bytes[left] + self._token_bytes[right], absent)

    def describe(self) -> str:
        """The table in words: the tokens themselves decide, so they need no more."""
        return "ranks"


def merge(token_ids: Sequence[int], table: MergeTable) -> list[int]:
    """Merge neighbours until none may: lowest rank first, leftmost first among equals.

    A heap of candidates over a linked list: n log n, so that one long word costs no minutes. A
    candidate is (rank, place of its left part); it is stale when the pair there has changed.
    Searching all ranks for the lowest is quadratic, and for the words of prose gained only 9 % of
    the first pass.
    """
    parts = list(token_ids)
    rank_of, merged_ids = table.rank, table.merged_ids
    count = len(parts)
    right_of = list(range(1, count + 1))
    left_of = list(range(-1, count - 1))
    ranks = [rank_of(pair, NO_MERGE) for pair in pairwise(parts)] + [NO_MERGE]
    heap = [(rank, at) for at, rank in enumerate(ranks) if rank != NO_MERGE]
    heapify(heap)
    while heap:
        rank, at = heappop(heap)
        if ranks[at] != rank:
            continue
        if not at & 255:
            breathe()  # of a long piece now and then
        gone = right_of[at]
        after = right_of[gone]
        parts[at], parts[gone] = merged_ids[rank], _GONE
        ranks[at] = ranks[gone] = NO_MERGE
        right_of[at] = after
        if after < count:
            left_of[after] = at
            ranks[at] = rank_of((parts[at], parts[after]), NO_MERGE)
            if ranks[at] != NO_MERGE:
                heappush(heap, (ranks[at], at))
        before = left_of[at]
        if before >= 0:
            ranks[before] = rank_of((parts[before], parts[at]), NO_MERGE)
            if ranks[before] != NO_MERGE:
                heappush(heap, (ranks[before], before))
    return [part for part in parts if part != _GONE]
