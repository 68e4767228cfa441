"""Characters: what a text is before any token: code points, and the bytes that stand for them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import regex

from cutaway.views.parts.drawing import WIDTH, Drawing, Span, columns
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject, visible
from cutaway.views.parts.view import View

MAX_CHARACTERS = 512  # one by one in the payload; the counts are of the whole text
_DRAWN, _NAMED = 96, 12

_CONTROLS = {"\n": "LINE FEED", "\t": "TAB", "\r": "CARRIAGE RETURN", "\0": "NULL"}
_GRAPHEME = regex.compile(r"\X")


@dataclass(frozen=True)
class Characters:
    """The first characters of a text, and counts of all of it.

    code_points: by Unicode.   names: by Unicode.   num_bytes_each: in UTF-8.
    graphemes:   index of what a reader sees as one sign, which may be several characters.
    by_size:     characters of 1, 2, 3 and 4 bytes.
    forms:       characters of the text in each of Unicode's normal forms.

    Shapes: code_points, num_bytes_each, graphemes [up to MAX_CHARACTERS].
    """

    text: str
    code_points: Array
    names: tuple[str, ...]
    num_bytes_each: Array
    graphemes: Array
    num_characters: int
    num_bytes: int
    num_graphemes: int
    by_size: tuple[int, int, int, int]
    forms: Mapping[str, int]

    def draw(self) -> Drawing:
        """The picture: signs with their numbers and bytes, then the names of rare ones."""
        drawing = Drawing()
        drawing.line(
            f"{self.num_characters} characters, {self.num_bytes} bytes in UTF-8, seen as "
            f"{self.num_graphemes} signs"
        )
        for cells in _lines([self._cell(index) for index in range(self._num_drawn)]):
            for row, name in enumerate(("", "number", "bytes")):
                spans = (Span(cell[row], "plain" if row == 0 else "dim") for cell in cells)
                drawing.line(Span(name.ljust(8), "dim"), *spans)
        if self.num_characters > self._num_drawn:
            left = self.num_characters - self._num_drawn
            drawing.line(Span(f"{left} characters more are counted and not drawn", "dim"))
        self._draw_named(drawing)
        sizes = zip((1, 2, 3, 4), self.by_size, strict=True)
        parts = [f"{count} of {size} byte{'s' * (size > 1)}" for size, count in sizes if count]
        drawing.line(Span(f"characters: {', '.join(parts)}", "dim"))
        if len({*self.forms.values(), self.num_characters}) > 1:
            forms = ", ".join(f"{count} in {form}" for form, count in self.forms.items())
            drawing.line(Span(f"the same signs in other characters: {forms}", "dim"))
        return drawing

    @property
    def _num_drawn(self) -> int:
        return min(len(self.names), _DRAWN)

    def _cell(self, index: int) -> tuple[str, str, str]:
        """Glyph, number and bytes of a character, padded to one width."""
        character = self.text[index]
        rows = (_glyph(character), str(ord(character)), character.encode().hex())
        width = max(map(columns, rows)) + 1
        first, second, third = (row + " " * (width - columns(row)) for row in rows)
        return first, second, third

    def _draw_named(self, drawing: Drawing) -> None:
        """Names of what a reader may not see or know: all but printable ASCII."""
        odd = {c: name for c, name in zip(self.text, self.names, strict=True) if not _is_plain(c)}
        rows = [(_glyph(c), f"U+{ord(c):04X}", name) for c, name in islice(odd.items(), _NAMED)]
        if rows:
            drawing.table(("sign", "code point", "name"), rows, sides="lll")
        if len(odd) > _NAMED:
            drawing.line(Span(f"{len(odd) - _NAMED} more are not named here", "dim"))


def _glyph(character: str) -> str:
    """A character so that it shows and takes a width that can be told."""
    if unicodedata.combining(character):
        return "\u25cc" + character
    if unicodedata.category(character) in ("Mn", "Me"):  # of no width, and joined to nothing
        return f"\\u{{{ord(character):x}}}"
    return visible(character.encode())


def _is_plain(character: str) -> bool:
    return character.isascii() and character.isprintable()


def _lines(cells: list[tuple[str, str, str]]) -> Iterator[list[tuple[str, str, str]]]:
    """As many cells as fit beside one another."""
    line: list[tuple[str, str, str]] = []
    used = 8
    for cell in cells:
        width = columns(cell[0])
        if used + width > WIDTH and line:
            yield line
            line, used = [], 8
        line.append(cell)
        used += width
    if line:
        yield line


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Characters:
    """The text's characters: that of the query, or else what was asked."""
    del taken
    text = subject.asked if query.text is None else query.text
    shown = text[:MAX_CHARACTERS]
    sizes = np.array([len(c.encode()) for c in text], np.int64)
    signs = [sign for sign in _GRAPHEME.findall(text) if sign]
    starts = np.repeat(np.arange(len(signs)), [len(sign) for sign in signs])
    counts = np.bincount(sizes, minlength=5)
    return Characters(
        text=shown,
        code_points=np.array([ord(c) for c in shown], np.int64),
        names=tuple(unicodedata.name(c, _CONTROLS.get(c, "no name")) for c in shown),
        num_bytes_each=sizes[:MAX_CHARACTERS].astype(np.uint8),
        graphemes=starts[:MAX_CHARACTERS].astype(np.int64),
        num_characters=len(text),
        num_bytes=int(sizes.sum()),
        num_graphemes=len(signs),
        by_size=(int(counts[1]), int(counts[2]), int(counts[3]), int(counts[4])),
        forms={form: len(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")},
    )


VIEW = View(
    "characters",
    "text",
    "What is the text, before any model reads it?",
    probe,
    takes=("text",),
)
