"""What a SentencePiece vocabulary does to a text before it looks for pieces: rules, and blanks.

Source: sentencepiece normalizer.cc; HF tokenizers, normalizers/ and pre_tokenizers/.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Protocol

import regex

from cutaway.tokens.added import AddedToken, AddedTokenFinder
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.sentencepiece.charsmap import Charsmap
from cutaway.tokens.sentencepiece.subword import SPACE
from cutaway.tokens.unicode import NormalForm, normalize

# Where a blank is put in front: at the start of the text, of every stretch, or nowhere.
Prefix = Literal["first", "always", "never"]

# Source: Rust's char::is_whitespace, which HF strips and splits by.
_BLANK = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_BLANKS = regex.compile(rf"{_BLANK}++")
_WORDS = regex.compile(rf"[^{_BLANK[1:-1]}]++")
_SPACES = regex.compile(" {2,}")


class Normalizer(Protocol):
    """Changes a stretch of text. A stretch is what lies between two added tokens."""

    def __call__(self, text: str, *, is_start: bool) -> str:
        """is_start: whether the stretch is the beginning of the text."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelNormalizer:
    """The normalization that a model file asks for.

    charsmap:          rules for characters, if any.
    kept:              user-defined pieces, which no rule touches.
    prefix:            where a blank is put in front (behind, with is_suffix).
    removes_extra:     blanks at both ends go, and runs of them become one.
    escapes:           blanks become SPACE.
    """

    charsmap: Charsmap | None = None
    kept: tuple[str, ...] = ()
    prefix: Prefix = "always"
    removes_extra: bool = False
    escapes: bool = True
    is_suffix: bool = False

    def __call__(self, text: str, *, is_start: bool) -> str:
        if not text:
            return text
        space = SPACE if self.escapes else " "
        text = self._mapped(text)
        if self.removes_extra:
            if text.isspace() and not text.strip(" "):
                return ""
            text = text.lstrip(" ")
        text = text.replace(" ", space)
        has_prefix = self.prefix == "always" or (self.prefix == "first" and is_start)
        if has_prefix and not self.is_suffix and (text or not self.removes_extra):
            text = space + text
        if self.removes_extra:
            text = text.rstrip(space)
        if has_prefix and self.is_suffix:
            text += space
        return text

    def _mapped(self, text: str) -> str:
        if not self.kept:
            return self._mapped_plain(text)
        done: list[str] = []
        for stretch, kept in self._finder.cut(text):
            added = stretch if kept is not None else self._mapped_plain(stretch)
            if self.removes_extra and done and done[-1].endswith(" "):
                added = added.lstrip(" ")
            if added:
                done.append(added)
        return "".join(done)

    def _mapped_plain(self, text: str) -> str:
        if self.charsmap is not None:
            text = self.charsmap.apply(text)
        return _SPACES.sub(" ", text) if self.removes_extra else text

    @cached_property
    def _finder(self) -> AddedTokenFinder:
        return AddedTokenFinder(AddedToken(token_id=0, content=text) for text in self.kept)


@dataclass(frozen=True)
class Steps:
    """The normalizers of tokenizer.json, one after the other."""

    steps: tuple[Normalizer, ...] = ()

    def __call__(self, text: str, *, is_start: bool) -> str:
        for step in self.steps:
            text = step(text, is_start=is_start)
        return text


@dataclass(frozen=True)
class Prepend:
    """Puts something in front of every stretch that is not empty."""

    content: str

    def __call__(self, text: str, *, is_start: bool) -> str:
        del is_start
        return self.content + text if text else text


@dataclass(frozen=True)
class Replace:
    """Replaces what an expression matches by a fixed text."""

    pattern: OnigurumaPattern
    content: str

    def __call__(self, text: str, *, is_start: bool) -> str:
        del is_start
        return self.pattern.sub(self.content, text)


@dataclass(frozen=True)
class Unicode:
    """A normal form of Unicode."""

    form: NormalForm

    def __call__(self, text: str, *, is_start: bool) -> str:
        del is_start
        return normalize(text, self.form)


@dataclass(frozen=True)
class Precompiled:
    """A character map as HF applies it."""

    charsmap: Charsmap

    def __call__(self, text: str, *, is_start: bool) -> str:
        del is_start
        return self.charsmap.apply_to_graphemes(text)


@dataclass(frozen=True)
class Strip:
    """Takes blanks away at the ends."""

    left: bool
    right: bool

    def __call__(self, text: str, *, is_start: bool) -> str:
        del is_start
        if self.left and (blanks := _BLANKS.match(text)):
            text = text[blanks.end() :]
        if self.right:
            end = len(text)
            while end and _BLANKS.match(text, end - 1):
                end -= 1
            text = text[:end]
        return text


# A piece of text, and whether it begins the text.
Part = tuple[str, bool]


class Splitting(Protocol):
    """Cuts a normalized stretch; no token goes across a cut."""

    def __call__(self, parts: Iterable[Part]) -> list[Part]: ...


@dataclass(frozen=True)
class Metaspace:
    """Writes blanks as SPACE, puts one in front, and may cut before each."""

    prefix: Prefix
    splits: bool

    def __call__(self, parts: Iterable[Part]) -> list[Part]:
        done: list[Part] = []
        for part, is_start in parts:
            text = part.replace(" ", SPACE)
            wants = self.prefix == "always" or (self.prefix == "first" and is_start)
            if wants and not text.startswith(SPACE):
                text = SPACE + text
            cut = _BEFORE_SPACE.findall(text) if self.splits else [text]
            done += [(each, is_start and not at) for at, each in enumerate(cut)]
        return done


_BEFORE_SPACE = regex.compile(rf"{SPACE}[^{SPACE}]*+|[^{SPACE}]++")


@dataclass(frozen=True)
class WhitespaceSplit:
    """Drops blanks and cuts there."""

    def __call__(self, parts: Iterable[Part]) -> list[Part]:
        return [
            (word[0], is_start and word.start() == 0)
            for part, is_start in parts
            for word in _WORDS.finditer(part)
        ]


@dataclass(frozen=True)
class SplitAt:
    """Cuts where an expression matches: the match alone, or kept with its neighbour."""

    pattern: OnigurumaPattern
    keeps: Literal["alone", "before", "behind"]  # where the match goes

    def __call__(self, parts: Iterable[Part]) -> list[Part]:
        done: list[Part] = []
        for part, is_start in parts:
            cut = self._cut(part)
            done += [(each, is_start and not at) for at, each in enumerate(cut)]
        return done

    def _cut(self, text: str) -> Sequence[str]:
        places = {0, len(text)}
        for start, end in self.pattern.spans(text):
            places |= {"alone": {start, end}, "before": {end}, "behind": {start}}[self.keeps]
        ordered = sorted(places)
        return [text[start:end] for start, end in pairwise(ordered)]
