"""Reads small files that somebody named, and nothing that is no file.

Whoever opens a pipe waits until somebody writes into it, and a device may never end: in the
engine's thread either ends every answer.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, *, most: int) -> bytes:
    """All bytes of a regular file, or of what a link to one names.

    most: bytes that it may have. Raises: OSError, also where it is no regular file or longer.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe does not wait
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = opened.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return data
