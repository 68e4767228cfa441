"""A cause of an answer's time, price or fault: what was found, and what is measured without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Question = Literal["slow", "expensive", "wrong"]


@dataclass(frozen=True)
class Cause:
    """found: what the record says.   instead: what was measured without it; None if nothing was."""

    question: Question
    name: str
    found: str
    instead: str | None


def count_noun(count: int, noun: str) -> str:
    """A count with its noun in the singular or plural: 1 token, 2 tokens."""
    return f"{count} {noun}{'s'[: count != 1]}"


def ms(seconds: float) -> str:
    """A time in words: milliseconds below one second, else seconds."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
