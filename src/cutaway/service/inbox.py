"""What was said of a request and not taken yet, and when the engine should make no more of it.

Whoever puts something in asks is_full, whoever takes something out is_drained; each is told once.
"""

from __future__ import annotations

import asyncio

from cutaway.core.output import Delta

MOST_UNREAD = 64  # news of a request, over which it is held: seconds of reading


class Inbox(asyncio.Queue[Delta | BaseException]):
    """News of one request for a reader who may be slow."""

    is_held = False

    def is_full(self) -> bool:
        """Whether its reader is so slow that the engine should make no more, from now on."""
        if self.is_held or self.qsize() < MOST_UNREAD:
            return False
        self.is_held = True
        return True

    def is_drained(self) -> bool:
        """Whether the engine may go on, from now on."""
        if not self.is_held or self.qsize() > MOST_UNREAD // 4:
            return False
        self.is_held = False
        return True
