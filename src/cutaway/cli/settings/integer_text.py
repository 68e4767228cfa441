"""Integers as people write them: 4096, 4_096, 32K, 1M, and sizes in bytes as people read them.

K is 1024 here, as in the names of context lengths: 32K tokens are 32,768.
"""

from __future__ import annotations

import re

from cutaway.core.limits import quote

_WRITTEN = re.compile(r"([+-]?[0-9][0-9_]*)([kKmMgG]?)")
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def parse_integer(text: str) -> int:
    """The integer that a text means.

    Raises: ValueError, whose message says what is allowed.
    """
    match = _WRITTEN.fullmatch(text.strip())
    if match is None or len(match[1]) > 24:
        raise ValueError(
            f"{quote(text)} is no integer; write digits, or K, M or G after them: 32K."
        )
    return int(match[1].replace("_", "")) * _FACTORS[match[2].lower()]


def show_bytes(count: int) -> str:
    """A number of bytes with the unit that keeps it short, in powers of 1024."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
