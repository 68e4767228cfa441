"""Who listens to answers: each gets the events of one, in batches, when the last was taken.

Runs between two steps of the engine and makes so few events there that answers hardly wait. A
listener who asks for no more costs nothing. Free of connections: whoever listens is a function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from cutaway.core.errors import CutawayError, OverloadedError
from cutaway.core.looks import EventBatch, EventRequest
from cutaway.engine.engine import Engine
from cutaway.host.faults import refuse
from cutaway.service.answer_events import Teller
from cutaway.trace.events import SCHEMA, Event
from cutaway.trace.ledger import find_recorded

MAX_EVENTS = 32  # between two steps; about 0.1 ms each
MAX_OPEN, MAX_OF_OWNER = 128, 32

Tell = Callable[[EventBatch | CutawayError], None]


@dataclass(eq=False)
class _Feed:
    """What one listener gets.

    next_id: of the event that is made next.   fault: told when what came before it was taken.
    """

    listened: EventRequest
    events: Iterator[Event | None]
    tell: Tell
    next_id: int = 0
    fault: Exception | None = None

    def batch(self, most: int) -> tuple[EventBatch, int]:
        """What is new, and how many events were made for it; most of them at once.

        Raises: what ended the events, behind the last of them.
        """
        if self.fault is not None:
            raise self.fault
        told: list[tuple[int, bytes]] = []
        num_made, is_last = 0, True
        try:
            for event in islice(self.events, most):
                if event is None:
                    is_last = False
                    break
                num_made += 1
                if self.next_id > self.listened.after:
                    told.append((self.next_id, msgspec.json.encode({"schema": SCHEMA, **event})))
                self.next_id += 1
        except Exception as fault:
            if not told:
                raise
            self.fault, is_last = fault, False
        return EventBatch(tuple(told), is_last and num_made < most), num_made


class Feeds:
    """Listeners, in the order in which they wait for more."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._teller = Teller(engine)
        self._open: dict[Hashable, _Feed] = {}
        self._waiting: dict[Hashable, None] = {}
        self._owners: Counter[str] = Counter()
        self._is_dry = True  # nobody who waits can be told anything before the next step

    @property
    def has_work(self) -> bool:
        """Whether somebody waits and there may be something new to tell."""
        return bool(self._waiting) and not self._is_dry

    @property
    def num_open(self) -> int:
        """How many listen."""
        return len(self._open)

    def open(self, name: Hashable, listened: EventRequest, tell: Tell) -> None:
        """Begin to listen. What comes, or why nothing does, is told later; at once if refused."""
        owner = listened.owner
        if len(self._open) >= MAX_OPEN or self._owners[owner] >= MAX_OF_OWNER:
            words = (
                f"too many listen already: {MAX_OPEN} streams of events at once, {MAX_OF_OWNER} of "
                "one owner. End some, or try again in a few seconds."
            )
            tell(OverloadedError(words, retry_after=5))
            return
        try:
            answer = find_recorded(
                self._engine.ledger, listened.request_id, listened.choice, owner=owner
            )
        except CutawayError as error:
            tell(error)
            return
        self._open[name] = _Feed(listened, self._teller.events_of(answer), tell)
        self._owners[owner] += 1
        self.more(name)

    def more(self, name: Hashable) -> None:
        """What was told has been taken."""
        if name in self._open and name not in self._waiting:
            self._waiting[name] = None
            self._is_dry = False

    def leave(self, name: Hashable) -> None:
        """Nobody listens any more; may be said of who has left."""
        feed = self._open.pop(name, None)
        if feed is None:
            return
        self._owners[feed.listened.owner] -= 1
        if not self._owners[feed.listened.owner]:
            del self._owners[feed.listened.owner]
        self._waiting.pop(name, None)

    def step(self) -> None:
        """Tell those who wait what is new, within the bound. To be called after each step."""
        left = MAX_EVENTS
        self._is_dry = True
        for name in tuple(self._waiting):
            del self._waiting[name]
            feed = self._open[name]
            try:
                left -= self._tell(name, feed, left)
            except Exception as fault:
                self.leave(name)
                refuse(feed.tell, fault, "these events cannot be told")
            if left <= 0:
                self._is_dry = False
                return

    def _tell(self, name: Hashable, feed: _Feed, most: int) -> int:
        """Tell one what is new. Returns how many events were made for it."""
        batch, num_made = feed.batch(most)
        if batch.is_last:
            self.leave(name)
        if batch.events or batch.is_last:
            feed.tell(batch)
        else:
            self._waiting[name] = None  # behind the others
        return num_made
