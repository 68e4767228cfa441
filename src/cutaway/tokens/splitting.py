"""Cuts a text into pieces by split patterns; merges never cross from one piece to the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import regex

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import shown


class Splitter:
    """Each pattern cuts every piece that the patterns before it left.

    What a pattern does not match stays as pieces of its own between its matches, so that the
    pieces of a text, joined, are the text.
    Raises: UnsupportedModelError for a pattern that is no regular expression.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._compiled = [_compile(pattern) for pattern in self.patterns]

    def split(self, text: str) -> list[str]:
        """Pieces of a text, cut by one pattern after the other; together they are the text."""
        pieces = [text] if text else []
        for pattern in self._compiled:
            pieces = list(chain.from_iterable(_cut(piece, pattern) for piece in pieces))
        return pieces


def _compile(pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise UnsupportedModelError(
            f"split pattern {shown(pattern)} cannot be compiled: {error}. "
            "It must be a regular expression that the `regex` package reads."
        ) from None


def _cut(text: str, pattern: regex.Pattern[str]) -> list[str]:
    # The usual pattern matches everything; then findall alone is a quarter faster.
    if not pattern.groups:
        pieces: list[str] = pattern.findall(text)
        if sum(map(len, pieces)) == len(text) and "" not in pieces:
            return pieces
    pieces, done = [], 0
    for match in pattern.finditer(text):
        start, end = match.span()
        pieces += [text[done:start], text[start:end]]
        done = end
    pieces.append(text[done:])
    return [piece for piece in pieces if piece]
