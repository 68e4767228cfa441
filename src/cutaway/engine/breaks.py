"""Steps that are broken off for somebody who comes while one owner's answers fill them.

Free of torch. What a step had computed by then is lost and computed again, to the same bits: its
tokens become final only at its end. So no two steps in a row are broken off, and only those of
owners that have several sequences, for owners that are none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from collections.abc import Set

from cutaway.engine.scheduler import Scheduled

# A step of fewer tokens is over soon enough: twice the time of a single token.
LEAST_TOKENS = 8


class BrokenOffError(Exception):
    """The step that ran was broken off; it is planned anew."""


class EngineLostError(Exception):
    """What others would read next cannot be made safe: this engine must end."""


class Breaks:
    """Who comes, told by any thread, and whether the step that runs is broken off for it."""

    def __init__(self) -> None:
        self.num_broken = 0
        self._coming: deque[str] = deque()  # owners of requests that the engine has not seen yet
        self._crowd: frozenset[str] = frozenset()
        self._was_broken = False

    def come(self, owner: str) -> None:
        """A request is on its way to the engine."""
        self._coming.append(owner)

    def arrive(self) -> None:
        """The request that came first of those on their way is there, or has been refused."""
        self._coming.popleft()

    def may_break(self, scheduled: Items[Scheduled], crowds: Set[str]) -> bool:
        """Whether a step that begins now may be broken off.

        crowds: owners that have several sequences, running or waiting.
        """
        self._crowd = frozenset()
        if self._was_broken:
            self._was_broken = False
            return False
        if sum(item.count for item in scheduled) < LEAST_TOKENS:
            return False
        if any(item.sequence.owner not in crowds for item in scheduled):
            return False
        self._crowd = frozenset(crowds)
        return True

    def is_wanted(self) -> bool:
        """Whether somebody comes who has less than those in the step."""
        # A copy is one operation: others may come meanwhile.
        return any(owner not in self._crowd for owner in tuple(self._coming))

    def note(self) -> None:
        """The step was broken off."""
        self.num_broken += 1
        self._was_broken = True
