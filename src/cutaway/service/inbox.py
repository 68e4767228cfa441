"""What was said of a request and not taken yet, and when the engine should make no more of it.

Whoever puts something in asks is_full, whoever takes something out is_drained; each is told once.
Where many read, one who is late gets several steps' tokens as one piece of news, and so catches up:
most of what a token costs a server, an event, a write and a wake-up, is paid for once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from cutaway.core.output import Delta

MANY = 32  # readers, whose news then costs a server more than it does their engine
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

    async def get(self, num_readers: int = 1) -> Delta | BaseException:
        """What was said next, beside many with what follows of the same choice; waits for it."""
        if not self._news:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        news = self._news.popleft()
        if num_readers < MANY or not self._news or not isinstance(news, Delta):
            return news
        parts = [news]
        while self._news and (following := _following(parts[-1], self._news[0])):
            parts.append(following)
            self._news.popleft()
        return news if len(parts) == 1 else _joined(parts)

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


def _following(last: Delta, news: Delta | BaseException) -> Delta | None:
    """The news where it can be told in one with what came before it.

    Faults are told alone, and seams: who goes on with an answer takes a seam's news for its own.
    """
    if not isinstance(news, Delta) or news.error is not None:
        return None
    if last.seam is not None or news.seam is not None:
        return None
    return news if last.finish_reason is None and news.choice == last.choice else None


def _joined(parts: Sequence[Delta]) -> Delta:
    """One piece of news of consecutive ones: what they say, and how the last ends."""
    return msgspec.structs.replace(
        parts[-1],
        token_ids=tuple(each for part in parts for each in part.token_ids),
        text="".join(part.text for part in parts),
        logprobs=tuple(each for part in parts for each in part.logprobs),
        prompt_logprobs=tuple(each for part in parts for each in part.prompt_logprobs),
        draws=tuple(each for part in parts for each in part.draws),
    )
