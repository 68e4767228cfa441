"""A picture in characters: lines of styled words. It knows no terminal and no colours."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WIDTH = 100  # columns

_EIGHTHS = "\u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"
_LEVELS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


@dataclass(frozen=True)
class Span:
    """Some words in one style: plain, dim, strong, good, bad, or token-N for token colours."""

    text: str
    style: str = "plain"


@dataclass
class Drawing:
    """Lines, top to bottom; each a list of spans. Meaning is never in a style alone."""

    lines: list[list[Span]] = field(default_factory=list[list[Span]])

    def line(self, *parts: Span | str) -> None:
        """Add one line; plain text becomes a span without a style."""
        self.lines.append([part if isinstance(part, Span) else Span(part) for part in parts])

    def text(self) -> str:
        """Without styles."""
        return "\n".join("".join(s.text for s in line).rstrip() for line in self.lines)

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[Span | str]], *, sides: str
    ) -> None:
        """Aligned columns: sides has l for a column of words, r for one of numbers."""
        cells = [[each if isinstance(each, Span) else Span(each) for each in row] for row in rows]
        heads = [Span(name, "dim") for name in header]
        widths = [max(columns(row[i].text) for row in (heads, *cells)) for i in range(len(header))]
        flush = [side != "l" for side in sides]
        for row in (heads, *cells):
            spans: list[Span] = []
            for cell, width, is_right in zip(row, widths, flush, strict=True):
                pad = " " * (width - columns(cell.text))
                spans += [Span(pad), cell, Span("  ")] if is_right else [cell, Span(pad + "  ")]
            self.lines.append(spans)

    def wrap(self, spans: Iterable[Span], *, indent: int = 0, width: int = WIDTH) -> None:
        """Spans one after the other, none broken, in as many lines as it takes."""
        line: list[Span] = [Span(" " * indent)]
        used = indent
        for span in spans:
            size = columns(span.text)
            if used + size > width and used > indent:
                self.lines.append(line)
                line, used = [Span(" " * indent)], indent
            line.append(span)
            used += size
        self.lines.append(line)


def columns(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    """A text that takes no more columns than width; an ellipsis stands for what is left out."""
    if columns(text) <= width:
        return text
    kept = ""
    for c in text:
        if columns(kept + c) >= width:
            break
        kept += c
    return kept + "\u2026"


def bar(fraction: float, width: int) -> str:
    """A bar of eighths of characters, padded to width. Units: fraction from 0 to 1."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("\u2588" * whole + (_EIGHTHS[rest - 1] if rest else "")).ljust(width)


def strip(values: Sequence[float], *, highest: float | None = None) -> str:
    """One character per value, higher where it is larger. Values from 0 up."""
    top = highest or max(values, default=0.0)
    steps = len(_LEVELS) - 1
    return "".join(
        _LEVELS[0 if top <= 0 else min(steps, round(value / top * steps))] for value in values
    )
