"""The unigram model: of all ways to cut a text into pieces, the one with the highest sum of scores.

One pass over the text keeps, for every place, the best way to get there (Viterbi).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from cutaway.tokens.sentencepiece.subword import Fallback, spell
from cutaway.tokens.tokenizer import Merge, ScoredPiece

UNKNOWN_PENALTY = 10.0  # below the worst piece. Source: sentencepiece unigram_model.h

Precision = Literal["f", "d"]

_NO_PREFIX = (0.0, -2)
_ONLY_PREFIX = (0.0, -1)


class Unigram:
    """Pieces with scores.

    scores:    text -> score, of the pieces that text may become.
    worst:     the lowest score of an ordinary piece; an unknown character is worse.
    precision: "f" sums in 32 bits, as sentencepiece does, "d" in 64, as HF tokenizers does. Two
               ways of equal worth are common (a run of one letter), and rounding picks one.

    Source: sentencepiece unigram_model.cc, EncodeOptimized.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        fallback: Fallback,
        *,
        worst: float,
        precision: Precision,
    ) -> None:
        self.fallback = fallback
        self._precision: Precision = precision
        self._unknown_score = array(precision, [worst - UNKNOWN_PENALTY])[0]
        self._scores = scores
        self._ids = ids
        # Every beginning of a piece: a search goes on as long as it is in here.
        self._prefixes: dict[str, tuple[float, int]] = {}
        for text in scores:
            for end in range(1, len(text)):
                self._prefixes.setdefault(text[:end], _ONLY_PREFIX)
        for text, score in scores.items():
            self._prefixes[text] = (score, ids[text])

    def cut(self, text: str) -> list[str]:
        """The text whole: what the sum is before a word decides how it is rounded in the word."""
        return [text] if text else []

    def token_ids(self, piece: str) -> tuple[int, ...]:
        """Ids of a text, which may hold lone surrogates for bytes that are no characters."""
        token_ids: list[int] = []
        unknown: list[str] = []
        for text, token_id in self._best(piece):
            if token_id < 0:
                unknown.append(text)
                continue
            if unknown:
                token_ids += self.fallback.token_ids("".join(unknown))
                unknown.clear()
            token_ids.append(token_id)
        if unknown:
            token_ids += self.fallback.token_ids("".join(unknown))
        return tuple(token_ids)

    def merges(self, piece: str) -> Iterator[Merge]:
        """None: nothing is merged here."""
        del piece
        return iter(())

    def best_cut(self, piece: str) -> Iterable[ScoredPiece]:
        """The parts with the highest sum of scores, and the score of each."""
        for text, token_id in self._best(piece):
            if token_id < 0:
                yield ScoredPiece(spell(text), None, self._unknown_score)
            else:
                yield ScoredPiece(spell(text), token_id, self._scores[text])

    def describe(self) -> Iterable[str]:
        """Everything that decides ids, in words."""
        yield f"unigram {self._precision} {self._unknown_score} {self.fallback}"
        yield str(sorted(self._scores.items()))

    def _best(self, piece: str) -> list[tuple[str, int]]:
        """The pieces of the best way, with their ids; -1 for an unknown character."""
        count, prefix = len(piece), self._prefixes.get
        sums = array(self._precision, bytes((count + 1) * array(self._precision).itemsize))
        rounded = array(self._precision, [0.0])
        starts, ids = [-1] * (count + 1), [-1] * (count + 1)
        for start in range(count):
            here = sums[start]
            is_known = False  # whether this character alone is a piece
            for end in range(start + 1, count + 1):
                score, token_id = prefix(piece[start:end], _NO_PREFIX)
                if token_id < 0:
                    if token_id == -2:
                        break
                    continue
                # Among equals the first wins, which is the one whose last piece is longest.
                rounded[0] = here + score
                if starts[end] < 0 or rounded[0] > sums[end]:
                    sums[end], starts[end], ids[end] = rounded[0], start, token_id
                if end == start + 1:
                    is_known = True
            if not is_known:
                rounded[0] = here + self._unknown_score
                if starts[start + 1] < 0 or rounded[0] > sums[start + 1]:
                    sums[start + 1], starts[start + 1], ids[start + 1] = rounded[0], start, -1
        way: list[tuple[str, int]] = []
        end = count
        while end > 0:
            way.append((piece[starts[end] : end], ids[end]))
            end = starts[end]
        return way[::-1]
