"""Whole numbers in text that others wrote: the one place where such text becomes a number.

int() alone is no check: it takes signs, spaces, underscores and the digits of every script, raises
for some that isdigit() takes, such as a raised two, and raises for more than 4,300 digits.
"""

from __future__ import annotations

import re

_WRITTEN = re.compile(r"-?[0-9]{1,19}")


def whole_number(text: str, *, is_signed: bool = False) -> int | None:
    """The number that a text of 1 to 19 digits from 0 to 9 means; None for any other text.

    is_signed: whether it may begin with a minus. 19 digits hold every size and place that there
    is: 2**63 has as many.
    """
    is_whole = _WRITTEN.fullmatch(text) and (is_signed or text[0] != "-")
    return int(text) if is_whole else None
