"""A few requests begin in each turn of the event loop, owner by owner; the rest wait.

A crowd that comes at once would else be parsed and refused or queued in one turn, and whoever asks
whether the server lives, or has a key of its own, would be answered behind all of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

# 0.2 to 0.4 ms each: a turn takes 10 ms. Each turn writes the events of all that have begun too, so
# that few in a turn make a crowd wait: with 8 the last of 256 began after 1.3 s, with 24 after 0.9.
MOST_IN_TURN = 24


class Entrance:
    """Who may begin now, and who in a later turn."""

    def __init__(self, most: int = MOST_IN_TURN) -> None:
        self._most = self._left = most
        self._is_turning = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # By owner; the one whose last turn was longest ago stands first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def come(self, owner: str) -> None:
        """Return when a request of this owner may begin."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the one before ended, and with it whoever waited
            self._loop, self._is_turning, self._left = loop, False, self._most
            self._waiting.clear()
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn, loop)
        if self._left:
            self._left -= 1
            return
        place = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        await place

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next ones begin; goes on as long as somebody came or waited in this turn."""
        self._is_turning = bool(self._waiting) or self._left < self._most
        self._left = self._most
        while self._waiting and self._left:
            owner, places = next(iter(self._waiting.items()))
            place = places.popleft()
            if places:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            if not place.done():  # it was given up else
                place.set_result(None)
                self._left -= 1
        if self._is_turning:
            loop.call_soon(self._turn, loop)
