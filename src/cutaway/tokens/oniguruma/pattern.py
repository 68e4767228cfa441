"""A split pattern of a tokenizer.json: found in a text as HF's tokenizers finds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import regex

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.tokens.oniguruma.newer import ANY
from cutaway.tokens.oniguruma.reader import escape_oniguruma
from cutaway.tokens.oniguruma.translate import translate

_NEWER = regex.compile(ANY)


@dataclass(frozen=True)
class OnigurumaPattern:
    """A pattern in Oniguruma's dialect; equal to another one with the same source.

    Raises: UnsupportedModelError for what cannot be translated exactly.
    """

    source: str
    # Two forms, since taking newer characters out of each class makes it slower by half.
    _usual: regex.Pattern[str] = field(init=False, repr=False, compare=False)
    _exact: regex.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            usual, exact = map(regex.compile, translate(self.source))
        except regex.error as error:
            raise UnsupportedModelError(
                f"split pattern {quote(self.source)} cannot be compiled: {error}."
            ) from None
        object.__setattr__(self, "_usual", usual)
        object.__setattr__(self, "_exact", exact)

    @classmethod
    def literal(cls, text: str) -> OnigurumaPattern:
        """The pattern that matches a text and nothing else."""
        return cls("".join(map(escape_oniguruma, text)))

    def compile_for(self, text: str) -> regex.Pattern[str]:
        """The form that matches this text as Oniguruma does."""
        is_newer = not text.isascii() and _NEWER.search(text)
        return self._exact if is_newer else self._usual

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where it matches, from left to right.

        Behind a match of nothing Oniguruma goes on one character later, `regex` at the same place.
        """
        pattern, at = self.compile_for(text), 0
        while at <= len(text) and (match := pattern.search(text, at)):
            start, end = match.span()
            at = end if end > start else end + 1
            yield start, end

    def sub(self, replacement: str, text: str) -> str:
        """The text with the replacement, as it stands, for every match."""
        return self.compile_for(text).sub(lambda _: replacement, text)
