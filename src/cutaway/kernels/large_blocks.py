"""Large blocks of memory, given back to the system as soon as they are freed."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

LARGE = 128 * 1024  # bytes; where glibc begins
_M_MMAP_THRESHOLD = -3  # of its malloc.h


def give_back_large_blocks() -> None:
    """Have what is LARGE or more come from the system and go back to it, for the whole process.

    glibc begins so, but each such block that is freed raises its threshold to that block's size,
    up to 32 MiB: after one body of 2 MB all bodies lie in heaps, between small objects that stay.
    Does nothing where the C library has no such threshold.
    """
    if sys.platform != "linux":
        return
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)
