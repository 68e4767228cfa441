"""Byte-pair merges of one piece, lowest rank first; ids only, no text and no vocabulary file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

from cutaway.host.turns import breathe

Pair = tuple[int, int]

NO_MERGE = 1 << 62  # above every rank

# Bytes of a piece that is no word; nobody writes one, but a whole body may be one.
LONG_PIECE = 2_000
_AT_ONCE = 65_536  # numbers written in one call, in which no other thread has a turn

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
    """Merge neighbours until none may: lowest rank first, leftmost first among equals."""
    return (merge_long if len(token_ids) > LONG_PIECE else merge_short)(token_ids, table)


def merge_short(token_ids: Sequence[int], table: MergeTable) -> list[int]:
    """The merges of a word.

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


def merge_long(token_ids: Sequence[int], table: MergeTable) -> list[int]:
    """The same for pieces of any length, by a list of places for each rank.

    A heap of a million candidates is made in one call that lets no other thread compute for half
    a second, and takes three times as long. Here only ranks stand in a heap; places of one rank
    come nearly in order, and are put in order when its turn comes.
    """
    parts = list(token_ids)
    rank_of, merged_ids = table.rank, table.merged_ids
    count = len(parts)
    right_of, left_of = _numbers(1, count + 1), _numbers(-1, count - 1)
    ranks: list[int] = []
    places: dict[int, list[int]] = {}
    for at, pair in enumerate(pairwise(parts)):
        if not at & 4095:
            breathe()
        ranks.append(rank := rank_of(pair, NO_MERGE))
        if rank != NO_MERGE:
            places.setdefault(rank, []).append(at)
    ranks.append(NO_MERGE)
    waiting = [*places]
    heapify(waiting)
    now, ordered = NO_MERGE, _Ordered([])

    def note(at: int) -> None:
        """The pair at a place is another one now."""
        right = right_of[at]
        rank = rank_of((parts[at], parts[right]), NO_MERGE) if right < count else NO_MERGE
        ranks[at] = rank
        if rank == NO_MERGE:
            return
        if rank == now:
            ordered.add(at)
            return
        if rank not in places:
            places[rank] = []
            heappush(waiting, rank)
        places[rank].append(at)

    num_merged = 0
    while waiting:
        now = heappop(waiting)
        ordered = _Ordered(places.pop(now))
        while (at := ordered.take()) is not None:
            if ranks[at] != now:
                continue
            num_merged += 1
            if not num_merged & 255:
                breathe()
            gone = right_of[at]
            after = right_of[gone]
            parts[at], parts[gone] = merged_ids[now], _GONE
            ranks[gone] = NO_MERGE
            right_of[at] = after
            if after < count:
                left_of[after] = at
            note(at)
            if (before := left_of[at]) >= 0:
                note(before)
            if waiting and waiting[0] < now:
                places[now] = ordered.rest()
                heappush(waiting, now)
                break
    return [part for part in parts if part != _GONE]


class _Ordered:
    """Places from left to right, while more come."""

    def __init__(self, places: list[int]) -> None:
        places.sort()
        self._places, self._next = places, 0
        self._come: list[int] = []

    def take(self) -> int | None:
        """The leftmost."""
        is_listed = self._next < len(self._places)
        if self._come and not (is_listed and self._places[self._next] <= self._come[0]):
            return heappop(self._come)
        if not is_listed:
            return None
        self._next += 1
        return self._places[self._next - 1]

    def add(self, place: int) -> None:
        """One more."""
        heappush(self._come, place)

    def rest(self) -> list[int]:
        """All that were not taken."""
        return self._places[self._next :] + self._come


def _numbers(start: int, end: int) -> list[int]:
    """start to end, without its end."""
    found: list[int] = []
    for first in range(start, end, _AT_ONCE):
        found += range(first, min(end, first + _AT_ONCE))
    return found
