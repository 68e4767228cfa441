"""Drawings on a terminal: styles become colours where somebody looks; words suffice elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cutaway.cli.terminal import is_seen, print_data

if TYPE_CHECKING:
    from cutaway.views.drawing import Drawing
    from cutaway.views.view import Shown

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


def show(shown: Shown) -> None:
    """A view to stdout: its question, its picture, and how far it is proven."""
    from cutaway.views.drawing import Drawing, Span

    head = Drawing()
    proof = "from the record" if shown.proof is None else str(shown.proof)
    head.line(
        Span(f"{shown.view.name}: {shown.view.question}", "strong"), Span(f"  [{proof}]", "dim")
    )
    picture = shown.payload.draw()
    picture.line()
    print_data(_rendered(head))
    print_data(_rendered(picture))


def _rendered(drawing: Drawing) -> str:
    if not is_seen(sys.stdout) or os.environ.get("NO_COLOR"):
        return drawing.text()
    from rich.color import ColorSystem
    from rich.style import Style

    lines: list[str] = []
    for line in drawing.lines:
        spans = (
            Style.parse(_STYLES.get(span.style, "")).render(
                span.text, color_system=ColorSystem.STANDARD
            )
            for span in line
        )
        lines.append("".join(spans).rstrip())
    return "\n".join(lines)
