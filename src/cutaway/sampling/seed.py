"""The seed of a request: the client's, or fresh bits of the operating system."""

from __future__ import annotations

import os
from collections.abc import Callable

from cutaway.core.request import SamplingParams


def resolve_seed(params: SamplingParams, *, entropy: Callable[[int], bytes] = os.urandom) -> int:
    """The seed that all choices of a request share, 64 bits signed.

    Choice is a part of the hash (uniform.py), so choice i is the same whatever n is. No global
    generator (random, numpy, torch) is read or written.
    """
    if params.seed is not None:
        return params.seed
    return int.from_bytes(entropy(8), "little", signed=True)
