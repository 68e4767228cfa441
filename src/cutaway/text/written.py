"""Text that knows, character by character, what a template wrote; the rest is the caller's.

A plain str is the caller's as a whole. An operation that is not among those below gives a plain
str, so whatever is forgotten here turns template text into caller text, never the other way.
Knows no template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

TEMPLATE = "t"
CALLER = "c"
# The same two inside {% generation %}, which says what the assistant has to write.
GENERATED_TEMPLATE, GENERATED_CALLER = "g", "a"
_TEMPLATES = frozenset((TEMPLATE, GENERATED_TEMPLATE))
_RUN = re.compile(f"[{TEMPLATE}{GENERATED_TEMPLATE}]+")
_GENERATED = re.compile(f"[{GENERATED_TEMPLATE}{GENERATED_CALLER}]+")
_FIRST_MESSAGE = 0x10000  # a caller's character may say which message it comes from


class Written(str):
    """A str with one mark per character; it compares and hashes as a str."""

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, text: str, origin: str) -> Written:
        """Text and its marks."""
        assert len(text) == len(origin), "every character has one mark"
        self = super().__new__(cls, text)
        self.origin = origin
        return self

    def __str__(self) -> Written:
        """Itself: generated code calls str() on whatever it puts out."""
        return self


class Absent(Written):
    """An empty text that also counts as none: what a message has that says nothing.

    Some templates add to the content of every message, others ask whether it is none.
    """

    __slots__ = ()


ABSENT = Absent("", "")


def mark_written(text: str) -> Written:
    """Text that the template wrote."""
    return Written(text, TEMPLATE * len(text))


def of_message(text: str, index: int) -> Written:
    """A caller's text that remembers which message it comes from."""
    return Written(text, chr(_FIRST_MESSAGE + index) * len(text))


def mark_generated(text: str) -> Written:
    """The same text as what a generation block holds, whoever wrote it."""
    origin = origin_of(text)
    marks = (GENERATED_TEMPLATE if mark in _TEMPLATES else GENERATED_CALLER for mark in origin)
    return Written(text, "".join(marks))


def origin_of(text: str) -> str:
    """The marks of a text."""
    return text.origin if isinstance(text, Written) else CALLER * len(text)


def is_templates(text: str) -> bool:
    """Whether the template wrote all of it."""
    return _TEMPLATES.issuperset(origin_of(text))


def generated_runs(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each longest stretch in generation blocks."""
    return (match.span() for match in _GENERATED.finditer(origin_of(text)))


def message_extents(text: str) -> dict[int, tuple[int, int]]:
    """For each message that of_message marked: where its first character is, and after its last."""
    extents: dict[int, tuple[int, int]] = {}
    for place, mark in enumerate(origin_of(text)):
        index = ord(mark) - _FIRST_MESSAGE
        if index >= 0:
            extents[index] = (extents.get(index, (place, 0))[0], place + 1)
    return extents


def template_runs(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each longest stretch that the template wrote."""
    if isinstance(text, Written):
        yield from (match.span() for match in _RUN.finditer(text.origin))


def concat(parts: Sequence[str]) -> str:
    """The parts in a row."""
    text = "".join(parts)
    marks = [part.origin if isinstance(part, Written) else "" for part in parts]
    if not any(marks):
        return text
    filled = [m or CALLER * len(part) for m, part in zip(marks, parts, strict=True)]
    return Written(text, "".join(filled))


def repeat(text: str, times: int) -> str:
    """text * times."""
    repeated = str.__mul__(text, times)
    return Written(repeated, text.origin * times) if isinstance(text, Written) else repeated


def cut(text: str, where: slice) -> str:
    """text[where]."""
    if isinstance(text, Written):
        return Written(str.__getitem__(text, where), text.origin[where])
    return text[where]


def strip(text: str, chars: str | None = None) -> str:
    """str.strip."""
    return lstrip(rstrip(text, chars), chars)


def lstrip(text: str, chars: str | None = None) -> str:
    """str.lstrip."""
    return cut(text, slice(len(text) - len(str.lstrip(text, chars)), None))


def rstrip(text: str, chars: str | None = None) -> str:
    """str.rstrip."""
    return cut(text, slice(len(str.rstrip(text, chars))))


def removeprefix(text: str, prefix: str) -> str:
    """str.removeprefix."""
    return cut(text, slice(len(prefix), None)) if text.startswith(prefix) else text


def removesuffix(text: str, suffix: str) -> str:
    """str.removesuffix."""
    return cut(text, slice(len(text) - len(suffix))) if text.endswith(suffix) else text


def split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """str.split."""
    return _located(text, str.split(text, sep, maxsplit), sep)


def rsplit(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """str.rsplit."""
    return _located(text, str.rsplit(text, sep, maxsplit), sep)


def splitlines(text: str, keepends: bool = False) -> list[str]:
    """str.splitlines."""
    whole = _consecutive(text, str.splitlines(text, keepends=True))
    if keepends:
        return whole
    return [cut(w, slice(len(n))) for w, n in zip(whole, str.splitlines(text), strict=True)]


def partition(text: str, sep: str) -> tuple[str, ...]:
    """str.partition."""
    return tuple(_consecutive(text, str.partition(text, sep)))


def rpartition(text: str, sep: str) -> tuple[str, ...]:
    """str.rpartition."""
    return tuple(_consecutive(text, str.rpartition(text, sep)))


def join(sep: str, parts: Sequence[str]) -> str:
    """str.join."""
    between = [piece for part in parts for piece in (sep, part)][1:]
    return concat(between)


def recase(text: str, result: str) -> str:
    """Result of upper, lower, title or capitalize, which keep order and, mostly, length.

    Where a character became several (the German sharp s), no mark fits: all is the caller's.
    """
    if isinstance(text, Written) and len(result) == len(text):
        return Written(result, text.origin)
    return result


def _located(text: str, pieces: list[str], sep: str | None) -> list[str]:
    """Pieces that lie in text in this order, with only sep, or whitespace, between them."""
    if not isinstance(text, Written):
        return pieces
    found: list[str] = []
    start = 0
    for piece in pieces:
        if sep is None:  # a piece starts with no whitespace, save the first of rsplit: at 0
            start = str.index(text, piece, start)
        found.append(cut(text, slice(start, start + len(piece))))
        start += len(piece) + len(sep or "")
    return found


def _consecutive(text: str, pieces: Sequence[str]) -> list[str]:
    found: list[str] = []
    start = 0
    for piece in pieces:
        found.append(cut(text, slice(start, start + len(piece))))
        start += len(piece)
    return found


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """str.replace."""
    if not old or not (isinstance(text, Written) or isinstance(new, Written)):
        return str.replace(text, old, new, count)
    return join(new, split(text, old, count))
