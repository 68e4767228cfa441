"""Byte-pair encoding over characters, with bytes for what no piece has: by scores, or by a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from itertools import pairwise

from cutaway.tokens.merging import NO_MERGE, PairMerges, merge
from cutaway.tokens.sentencepiece.subword import SPACE, Fallback, WordCutter, spell
from cutaway.tokens.tokenizer import Merge, ScoredPiece


class ScoreBPE:
    """Merges implied by scores: two neighbours merge if they are a piece, the best score first.

    scores: text -> score, of the pieces that text may become.
    unused: pieces that are merged into but never given out: they come apart again.
    Source: sentencepiece bpe_model.cc.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        fallback: Fallback,
        *,
        unused: AbstractSet[str] = frozenset(),
    ) -> None:
        self._ids = ids
        self.fallback = fallback
        self._unused = unused
        # Equal scores have equal ranks, so that the leftmost of them goes first.
        order = sorted(set(scores.values()), reverse=True)
        rank_of = {score: rank for rank, score in enumerate(order)}
        self._ranks = {text: rank_of[score] for text, score in scores.items()}
        self.cut = WordCutter(ids, is_cut=SPACE in ids or fallback.is_total).cut

    def token_ids(self, piece: str) -> tuple[int, ...]:
        """Ids of a text, which may hold lone surrogates for bytes that are no characters."""
        token_ids: list[int] = []
        is_unknown = False
        for part in merge_texts(list(piece), self._ranks):
            found = self._part_ids(part)
            # Neighbours that are unknown are one unknown token.
            if not (is_unknown and found == [self.fallback.unknown_id]):
                token_ids += found
            is_unknown = found == [self.fallback.unknown_id]
        return tuple(token_ids)

    def merges(self, piece: str) -> Iterator[Merge]:
        """The merges in order, the best score first."""
        for rank, left, right, parts in self._steps(piece):
            token_id = self._ids[left + right]
            after = tuple(map(spell, parts))
            yield Merge(rank, spell(left), spell(right), token_id, after)

    def best_cut(self, piece: str) -> Iterable[ScoredPiece]:
        """Nothing: ids come about by merges."""
        del piece
        return ()

    def describe(self) -> Iterable[str]:
        """Everything that decides ids, in words."""
        yield f"scores {self.fallback} {sorted(self._unused)} {sorted(self._ranks.items())}"

    def _part_ids(self, part: str) -> list[int]:
        steps = list(self._steps(part)) if part in self._unused else []
        if steps:
            _, left, right, _ = steps[-1]
            return self._part_ids(left) + self._part_ids(right)
        token_id = self._ids.get(part)
        return self.fallback.token_ids(part) if token_id is None else [token_id]

    def _steps(self, piece: str) -> Iterator[tuple[int, str, str, list[str]]]:
        """Each merge in order: rank, left, right and all parts after it; quadratic."""
        parts = list(piece)
        while True:
            ranks = [self._ranks.get(left + right, NO_MERGE) for left, right in pairwise(parts)]
            rank = min(ranks, default=NO_MERGE)
            if rank == NO_MERGE:
                return
            at = ranks.index(rank)
            left, right = parts[at : at + 2]
            parts[at : at + 2] = [left + right]
            yield rank, left, right, list(parts)


class ListedBPE:
    """Merges listed pair by pair, as tokenizer.json has them.

    Source: HF tokenizers, models/bpe/model.rs.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        merges: PairMerges,
        fallback: Fallback,
        *,
        fuses_unknown: bool,
        whole_pieces: Mapping[str, int],
    ) -> None:
        self._ids = ids
        self._merges = merges
        self.fallback = fallback
        self._fuses_unknown = fuses_unknown
        self._whole_pieces = whole_pieces
        self._texts = {token_id: text for text, token_id in ids.items()}
        # Pieces are taken whole where nothing was cut, so nothing may be cut.
        is_cut = (SPACE in ids or fallback.is_total) and not whole_pieces
        self.cut = WordCutter(ids, is_cut=is_cut).cut

    def token_ids(self, piece: str) -> tuple[int, ...]:
        """Ids of a text, which may hold lone surrogates for bytes that are no characters."""
        whole = self._whole_pieces.get(piece)
        if whole is not None:
            return (whole,)
        return tuple(merge(self._symbols(piece), self._merges))

    def merges(self, piece: str) -> Iterator[Merge]:
        """The merges in order, the lowest rank first."""
        parts = self._symbols(piece)
        while True:
            ranks = [self._merges.rank(pair, NO_MERGE) for pair in pairwise(parts)]
            rank = min(ranks, default=NO_MERGE)
            if rank == NO_MERGE:
                return
            at = ranks.index(rank)
            left, right = (self._part(part) for part in parts[at : at + 2])
            token_id = self._merges.merged_ids[rank]
            parts[at : at + 2] = [token_id]
            yield Merge(rank, left, right, token_id, tuple(map(self._part, parts)))

    def best_cut(self, piece: str) -> Iterable[ScoredPiece]:
        """Nothing: ids come about by merges."""
        del piece
        return ()

    def describe(self) -> Iterable[str]:
        """Everything that decides ids, in words."""
        yield f"{self.fallback} {self._fuses_unknown} {bool(self._whole_pieces)}"
        yield self._merges.describe()

    def _symbols(self, piece: str) -> list[int]:
        """What a piece is before anything merges."""
        symbols: list[int] = []
        is_unknown = False
        for character in piece:
            token_id = self._ids.get(character)
            found = [token_id] if token_id is not None else self.fallback.token_ids(character)
            fuses = is_unknown and self._fuses_unknown
            is_unknown = token_id is None and found == [self.fallback.unknown_id]
            if not (fuses and is_unknown):
                symbols += found
        return symbols

    def _part(self, token_id: int) -> bytes:
        return spell(self._texts[token_id])


def merge_texts(parts: list[str], ranks: Mapping[str, int]) -> list[str]:
    """Merge neighbours until none may: lowest rank first, leftmost first among equals.

    ranks: of what two neighbours give together. The heap and the linked list are those of
    merging.merge; here what was merged is known by its text alone.
    """
    count = len(parts)
    rank_of = ranks.get
    right_of = list(range(1, count + 1))
    left_of = list(range(-1, count - 1))
    waiting = [rank_of(left + right, NO_MERGE) for left, right in pairwise(parts)] + [NO_MERGE]
    heap = [(rank, at) for at, rank in enumerate(waiting) if rank != NO_MERGE]
    heapify(heap)
    while heap:
        rank, at = heappop(heap)
        if waiting[at] != rank:
            continue
        gone = right_of[at]
        after = right_of[gone]
        parts[at] += parts[gone]
        parts[gone] = ""
        waiting[at] = waiting[gone] = NO_MERGE
        right_of[at] = after
        if after < count:
            left_of[after] = at
            waiting[at] = rank_of(parts[at] + parts[after], NO_MERGE)
            if waiting[at] != NO_MERGE:
                heappush(heap, (waiting[at], at))
        before = left_of[at]
        if before >= 0:
            waiting[before] = rank_of(parts[before] + parts[at], NO_MERGE)
            if waiting[before] != NO_MERGE:
                heappush(heap, (waiting[before], before))
    return [part for part in parts if part]
