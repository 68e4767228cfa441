"""Where output goes: data to stdout, everything said to a person to stderr.

Colour never carries meaning alone, and is left out where NO_COLOR is set or nobody looks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TextIO

import typer

# A model's text could steer a terminal: move its cursor, set its title. Such characters are shown
# as their pictures (U+2400 and up), all but newline and tab.
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if code not in (9, 10)},
    127: 0x2421,
    **{code: 0xFFFD for code in range(0x80, 0xA0)},
}


def is_seen(stream: TextIO) -> bool:
    """Whether a person looks at a stream."""
    return stream.isatty()


def print_data(text: str, *, end: str = "\n") -> None:
    """Text to stdout at once, made harmless where it is a terminal."""
    shown = text.translate(_PICTURES) if is_seen(sys.stdout) else text
    sys.stdout.write(shown + end)
    sys.stdout.flush()


def print_json(value: Mapping[str, object]) -> None:
    """One object on one line to stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def note(text: str, *, dim: bool = False) -> None:
    """A line to stderr."""
    shown = text.translate(_PICTURES)
    has_color = is_seen(sys.stderr) and not os.environ.get("NO_COLOR")
    sys.stderr.write((typer.style(shown, dim=True) if dim and has_color else shown) + "\n")
    sys.stderr.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> str:
    """Aligned columns; right names the headings whose column is flush right.

    Lines are cut at no width: what is piped stays whole, and a terminal wraps.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="")
    for name in header:
        justify = "right" if name in right.split() else "left"
        drawn.add_column(name, justify=justify, no_wrap=True)
    for row in rows:
        drawn.add_row(*map(Text, row))
    page = StringIO()
    Console(file=page, width=100_000, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
