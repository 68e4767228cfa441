"""Cuts a text into pieces by split patterns; merges never cross from one piece to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import regex

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern


class Splitter:
    """Each pattern cuts every piece that the patterns before it left.

    What a pattern does not match stays as pieces of its own between its matches, so that the
    pieces of a text, joined, are the text.
    A pattern is one of the `regex` package, or one of a file in Oniguruma's dialect.
    Raises: UnsupportedModelError for a pattern that is no regular expression.
    """

    def __init__(self, patterns: Sequence[str | OnigurumaPattern]) -> None:
        self.patterns = tuple(patterns)
        self._compiled = [_compile(pattern) for pattern in self.patterns]

    def split(self, text: str) -> list[str]:
        """Pieces of a text, cut by one pattern after the other; together they are the text."""
        pieces = [text] if text else []
        for pattern in self._compiled:
            pieces = list(chain.from_iterable(_cut(piece, pattern) for piece in pieces))
        return pieces


def _compile(pattern: str | OnigurumaPattern) -> regex.Pattern[str] | OnigurumaPattern:
    if isinstance(pattern, OnigurumaPattern):
        return pattern
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise UnsupportedModelError(
            f"split pattern {quote(pattern)} cannot be compiled: {error}. "
            "It must be a regular expression that the `regex` package reads."
        ) from None


def _cut(text: str, rule: regex.Pattern[str] | OnigurumaPattern) -> list[str]:
    # The usual pattern matches everything; then findall alone is a quarter faster.
    pattern = rule.compile_for(text) if isinstance(rule, OnigurumaPattern) else rule
    if not pattern.groups:
        pieces: list[str] = pattern.findall(text)
        if sum(map(len, pieces)) == len(text) and "" not in pieces:
            return pieces
    pieces, done = [], 0
    for start, end in _spans(text, rule):
        pieces += [text[done:start], text[start:end]]
        done = end
    pieces.append(text[done:])
    return [piece for piece in pieces if piece]


def _spans(text: str, rule: regex.Pattern[str] | OnigurumaPattern) -> Iterator[tuple[int, int]]:
    if isinstance(rule, OnigurumaPattern):
        return rule.spans(text)
    return (match.span() for match in rule.finditer(text))
