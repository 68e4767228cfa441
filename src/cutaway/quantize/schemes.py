"""The words for our own schemes, and what they mean. Free of torch.

int8 and int4 round groups of columns to integers, fp8 rows to floats of 8 bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

_WORD = re.compile(r"(int8|int4)(-sym|-asym)?(-g(?:32|64|128))?|fp8")
WORDS = "int8, int4 or fp8; the first two may go on with -sym or -asym and -g32, -g64 or -g128"


@dataclass(frozen=True)
class Scheme:
    """What a matrix is rounded to.

    group_size: columns that share a scale; fp8 has one for each row.
    is_symmetric: whether zero is the middle of the integers.
    """

    kind: Literal["integers", "floats"]
    bits: int
    group_size: int = 0
    is_symmetric: bool = True


def scheme_of(word: str, *, param: str = "quant") -> Scheme:
    """The scheme that a word names. int8 is symmetric unless it says otherwise, int4 is not.

    Groups are of 32 columns by default: the native layouts keep a scale for each 32 anyway.
    param: what a message calls it.   Raises: ConfigError saying which words there are.
    """
    match = _WORD.fullmatch(word)
    if match is None:
        raise ConfigError(f"{param} is {quote(word)}; it must be {WORDS}.")
    if word == "fp8":
        return Scheme("floats", 8)
    name, symmetry, group = match.groups()
    is_symmetric = name == "int8" if symmetry is None else symmetry == "-sym"
    return Scheme("integers", int(name[3:]), int(group[2:]) if group else 32, is_symmetric)
