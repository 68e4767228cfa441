"""Drawings on a terminal: styles become colours where somebody looks; words suffice elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cutaway.cli.terminal.terminal import is_seen, print_data

if TYPE_CHECKING:
    from cutaway.views.parts.drawing import Drawing
    from cutaway.views.parts.view import Shown

_COLUMNS = 100
StyledLines = Sequence[Sequence[tuple[str, str]]]  # words and their style

# Readable on dark and light grounds; neighbours in the row of token colours differ.
_STYLES = {
    "dim": "dim",
    "strong": "bold",
    "good": "green",
    "bad": "red",
    "token-0": "cyan",
    "token-1": "yellow",
    "token-2": "magenta",
    "token-3": "green",
    "token-4": "blue",
    "token-5": "bright_red",
}


def show(shown: Shown, *, is_first: bool = True) -> None:
    """A view to stdout: its question, its picture, and how far it is proven."""
    if not is_first:
        print_data("")
    proof = None if shown.proof is None else str(shown.proof)
    print_title(shown.view.name, shown.view.question, proof)
    print_drawing(shown.payload.draw())


def print_title(name: str, question: str, proof: str | None) -> None:
    """What stands above a view's picture: one line where it fits into 100 columns."""
    asked, proven = f"{name}: {question}", f"[{'from the record' if proof is None else proof}]"
    if len(asked) + len(proven) > _COLUMNS - 2:
        print_lines([[(asked, "strong")], [(f"  {proven}", "dim")]])
    else:
        print_lines([[(asked, "strong"), (f"  {proven}", "dim")]])


def print_drawing(drawing: Drawing, *, is_first: bool = True) -> None:
    """A picture to stdout, with an empty line between it and one before it."""
    if not is_first:
        print_data("")
    print_lines([[(span.text, span.style) for span in line] for line in drawing.lines])


def print_lines(lines: StyledLines) -> None:
    """Lines of styled words to stdout."""
    if not is_seen(sys.stdout) or os.environ.get("NO_COLOR"):
        print_data("\n".join("".join(text for text, _ in line).rstrip() for line in lines))
        return
    from rich.color import ColorSystem
    from rich.style import Style

    for line in lines:
        spans = (
            Style.parse(_STYLES.get(style, "")).render(text, color_system=ColorSystem.STANDARD)
            for text, style in line
        )
        print_data("".join(spans).rstrip())
