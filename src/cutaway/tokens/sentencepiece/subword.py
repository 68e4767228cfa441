"""What SentencePiece's two kinds of vocabulary have in common: a text becomes pieces, or bytes.

Knows no normalization and no added token: see sentencepiece.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import regex

from cutaway.tokens.tokenizer import Merge, ScoredPiece

SPACE = "\u2581"  # stands for a blank in a vocabulary: LOWER ONE EIGHTH BLOCK

ByteIds = tuple[int | None, ...]


class Subword(Protocol):
    """A vocabulary that gives every text ids.

    Source: Kudo and Richardson 2018, arXiv 1808.06226.
    """

    fallback: Fallback

    def cut(self, text: str) -> list[str]:
        """Parts of which no token takes from two, so that each can be encoded by itself."""
        ...

    def token_ids(self, piece: str) -> tuple[int, ...]:
        """Ids of a text, which may hold lone surrogates for bytes that are no characters."""
        ...

    def merges(self, piece: str) -> Iterator[Merge]:
        """How the ids came about, where they came about by merges."""
        ...

    def best_cut(self, piece: str) -> Iterable[ScoredPiece]:
        """The parts with their scores, where the ids came about by a sum of scores."""
        ...

    def describe(self) -> Iterable[str]:
        """Everything that decides ids, in words."""
        ...


@dataclass(frozen=True)
class Fallback:
    """What becomes of a text that no piece has: its bytes, or else the unknown token, or nothing.

    byte_ids: the token of each byte, None where there is none; empty without byte fallback.
    """

    byte_ids: ByteIds = ()
    unknown_id: int | None = None

    def token_ids(self, text: str) -> list[int]:
        """Ids of a text without a piece."""
        if self.byte_ids:
            found = [self.byte_ids[byte] for byte in text.encode("utf-8", "surrogateescape")]
            known = [token_id for token_id in found if token_id is not None]
            if len(known) == len(found):
                return known
        return [] if self.unknown_id is None else [self.unknown_id]

    @property
    def is_total(self) -> bool:
        """Whether every text has bytes to fall back on."""
        return bool(self.byte_ids) and None not in self.byte_ids


def spell(text: str) -> bytes:
    """What a part of a piece stands for."""
    return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def byte_ids_of(ids: Mapping[str, int]) -> ByteIds:
    """The token of each byte, written as <0x0A>; empty if there is none at all."""
    found = tuple(ids.get(f"<0x{byte:02X}>") for byte in range(256))
    return () if found == (None,) * 256 else found


class WordCutter:
    """Cuts a text in front of blanks, except where a token of the vocabulary goes across.

    In public vocabularies one token in 262,144 does (Gemma 3: ">" and "</" with a blank between).
    """

    def __init__(self, tokens: Iterable[str], *, is_cut: bool) -> None:
        """is_cut: whether to cut at all; a blank that is no token may be unknown with what is
        before it."""
        before = {
            token[at - 1]
            for token in tokens
            if SPACE in token[1:]
            for at in range(1, len(token))
            if token[at] == SPACE and token[at - 1] != SPACE
        }
        # What may stand before a blank without a cut between the two.
        crossing = "".join(map(regex.escape, sorted(before)))
        across = rf"|(?<=[{crossing}]){SPACE}++" if crossing else ""
        self._pattern = regex.compile(rf"{SPACE}*+(?:[^{SPACE}]++{across})*+") if is_cut else None

    def cut(self, text: str) -> list[str]:
        """Parts of a text that no token crosses; together they are the text."""
        if self._pattern is None:
            return [text] if text else []
        return [part for part in self._pattern.findall(text) if part]
