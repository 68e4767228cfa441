"""Cuts a text into pieces by split patterns; merges never cross from one piece to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import regex

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.tokens.oniguruma.newer import ANY
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.oniguruma.properties import older, property_members


class Splitter:
    """Each pattern cuts every piece that the patterns before it left.

    What a pattern does not match stays as pieces of its own between its matches, so that the
    pieces of a text, joined, are the text.
    A pattern is one of the `regex` package, or one of a file in Oniguruma's dialect; both know the
    characters of Unicode 16, as tiktoken's and tokenizers' do.
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


class _OwnPattern:
    """A pattern of the `regex` package, less the characters that are newer than Unicode 16."""

    def __init__(self, source: str) -> None:
        self._usual = regex.compile(source)
        self._exact = regex.compile("(?V1)" + _PROPERTY.sub(_older, source))

    def compile_for(self, text: str) -> regex.Pattern[str]:
        """The form that matches this text as it is matched there."""
        return self._exact if not text.isascii() and _NEWER.search(text) else self._usual

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where it matches, from left to right."""
        return (match.span() for match in self.compile_for(text).finditer(text))


_NEWER = regex.compile(ANY)
_PROPERTY = regex.compile(r"\\p\{(\w+)\}")


def _older(found: regex.Match[str]) -> str:
    members = property_members(found[1])
    return found[0] if members is None else older(members)


def _compile(pattern: str | OnigurumaPattern) -> _OwnPattern | OnigurumaPattern:
    if isinstance(pattern, OnigurumaPattern):
        return pattern
    try:
        return _OwnPattern(pattern)
    except regex.error as error:
        raise UnsupportedModelError(
            f"split pattern {quote(pattern)} cannot be compiled: {error}. "
            "It must be a regular expression that the `regex` package reads."
        ) from None


def _cut(text: str, rule: _OwnPattern | OnigurumaPattern) -> list[str]:
    # The usual pattern matches everything; then findall alone is a quarter faster.
    pattern = rule.compile_for(text)
    if not pattern.groups:
        pieces: list[str] = pattern.findall(text)
        if sum(map(len, pieces)) == len(text) and "" not in pieces:
            return pieces
    pieces, done = [], 0
    for start, end in rule.spans(text):
        pieces += [text[done:start], text[start:end]]
        done = end
    pieces.append(text[done:])
    return [piece for piece in pieces if piece]
