"""What was said of a request and not taken yet, and when the engine should make no more of it.

Whoever puts something in asks is_full, whoever takes something out is_drained; each is told once.
"""

from __future__ import annotations

import asyncio
from collections import deque

from cutaway.core.output import Delta

MOST_UNREAD = 64  # news of a request, over which it is held: seconds of reading


class Inbox:
    """News of one request for one reader, who may be slow.

    A queue of asyncio's does the same for many: a token costs it some microseconds more.
    """

    is_held = False

    def __init__(self) -> None:
        self._news: deque[Delta | BaseException] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put_nowait(self, news: Delta | BaseException) -> None:
        """Say something. To be called in the event loop of who reads."""
        self._news.append(news)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Delta | BaseException:
        """What was said next; waits for it."""
        if not self._news:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._news.popleft()

    def qsize(self) -> int:
        """How much was said and not taken."""
        return len(self._news)

    def is_full(self) -> bool:
        """Whether its reader is so slow that the engine should make no more, from now on."""
        if self.is_held or len(self._news) < MOST_UNREAD:
            return False
        self.is_held = True
        return True

    def is_drained(self) -> bool:
        """Whether the engine may go on, from now on."""
        if not self.is_held or len(self._news) > MOST_UNREAD // 4:
            return False
        self.is_held = False
        return True
