"""How much is read of a socket at once: less than what C libraries take from the system each time.

asyncio asks for 256 KiB at each read. Where large blocks come from the system and go back to it
(kernels/large_blocks) such a read took 52 us of processor time in place of 3, however little came.
"""

from __future__ import annotations

import asyncio

READ_BYTES = 1 << 16


def read_in_pieces(transport: asyncio.BaseTransport) -> None:
    """Have a transport of asyncio's own loops read READ_BYTES at once; others stay as they are."""
    if hasattr(transport, "max_size"):
        setattr(transport, "max_size", READ_BYTES)  # noqa: B010 asyncio does not type it
