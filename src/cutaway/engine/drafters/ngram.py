"""Drafts copied from earlier in the same text: prompt lookup. Free of torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from cutaway.engine.drafters.drafter import Draft, Wish

_CANDIDATES = 8  # earlier places that are compared, the latest first


@dataclass
class _Index:
    """Where each pair of tokens stands, the latest place first.

    last:    by the pair, the position behind its latest place.
    earlier: by position, the one behind the same pair's place before that; -1 where it is none.
    """

    start: int  # positions before it are not in the index
    last: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    earlier: list[int] = field(default_factory=list[int])


class NGramDrafter:
    """Finds the earlier place that agrees with the text's end longest; proposes what followed it.

    Where another place agrees too and something else followed, that is proposed beside.

    An index of pairs grows with each answer, so that a guess takes 2 to 4 us however long the
    text is; bench/drafted.py --times measures it.

    shortest: tokens that must agree.   longest: beyond so many none is compared.
    reach:    tokens at the end of a prompt that are indexed; what is generated is indexed whole.
    GuessSource: Saxena 2023, prompt lookup decoding.
    """

    only_kind = None
    heeds_bounds = False
    is_behind = False

    def __init__(self, *, shortest: int = 2, longest: int = 16, reach: int = 16_384) -> None:
        self._shortest, self._longest, self._reach = shortest, max(shortest, longest), reach
        self._indices: dict[Hashable, _Index] = {}

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """What followed the earlier place that agrees longest; the latest of several."""
        return [self._draft(wish) for wish in wishes]

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        """Whether the end of a text stood there before."""
        index = self._index(key, token_ids)
        return bool(index.earlier) and index.earlier[-1] >= 0

    def finish(self, key: Hashable) -> None:
        """Forget an answer's index."""
        self._indices.pop(key, None)

    def _draft(self, wish: Wish) -> Draft:
        token_ids, shortest = wish.token_ids, self._shortest
        index, known = self._index(wish.key, token_ids), len(token_ids)
        if known - index.start < shortest or wish.most < 1:
            return Draft()
        end = index.earlier[known - 1 - index.start]
        best, longest = -1, shortest - 1
        others: dict[int, tuple[int, int]] = {}  # by what followed, the first that agreed longest
        for _ in range(_CANDIDATES):
            if end < 0:
                break
            agreed = self._agreed(token_ids, index.start, end)
            if agreed > others.get(token_ids[end], (0, 0))[0]:
                others[token_ids[end]] = agreed, end
            if agreed > longest:
                best, longest = end, agreed
                if agreed >= self._longest:
                    break
            end = index.earlier[end - 1 - index.start]
        if best < 0:
            return Draft()
        draft = Draft(_follow(token_ids, best, wish.most), _kind(longest))
        others.pop(token_ids[best], None)
        if others:
            other = max(others.values())[1]
            draft.other_token_ids.extend(_follow(token_ids, other, wish.most))
        return draft

    def _index(self, key: Hashable, token_ids: Sequence[int]) -> _Index:
        """The index of an answer, up to its last token."""
        index, known = self._indices.get(key), len(token_ids)
        if index is None or index.start + len(index.earlier) > known:
            index = self._indices[key] = _Index(max(0, known - self._reach))
        if index.start + len(index.earlier) < known:
            self._extend(index, token_ids)
        return index

    def _extend(self, index: _Index, token_ids: Sequence[int]) -> None:
        """Index the tokens that came since."""
        last, earlier, size = index.last, index.earlier, self._shortest
        for end in range(index.start + len(earlier) + 1, len(token_ids) + 1):
            if end - index.start < size:
                earlier.append(-1)
                continue
            pair = tuple(token_ids[end - size : end])
            earlier.append(last.get(pair, -1))
            last[pair] = end

    def _agreed(self, token_ids: Sequence[int], start: int, end: int) -> int:
        """How many tokens before an earlier place are those at the end of the text."""
        known = len(token_ids)
        agreed = self._shortest
        most = min(self._longest, end - start)
        while agreed < most and token_ids[end - 1 - agreed] == token_ids[known - 1 - agreed]:
            agreed += 1
        return agreed


def _follow(token_ids: Sequence[int], start: int, most: int) -> list[int]:
    """What followed a place, read on into itself where the text repeats to its very end."""
    copied = list(token_ids[start : start + most])
    period = len(token_ids) - start
    while len(copied) < most:
        copied.append(copied[len(copied) - period])
    return copied


def _kind(agreed: int) -> str:
    """Guesses behind a longer agreement are right more often."""
    names = {8: "ngram, 8 and more", 4: "ngram, 4 to 7", 0: "ngram, 3 and less"}
    return next(name for least, name in names.items() if agreed >= least)
