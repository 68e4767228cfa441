"""Rank 0's side of a divided model: it hands each step to the followers, and computes its own part.

A group lives and dies as one: when a rank is gone, or a step raised in the middle, no later step
can be right, and the engine ends. Whoever started it starts it again.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

from torch import Tensor

from cutaway.core.step import Numbers, Sink
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.ranks.rank_messages import (
    ClearPages,
    ClosePages,
    CopyPages,
    OpenPages,
    Order,
    RunStep,
    as_lists,
    send,
)
from cutaway.parallel.rank_group import RankGroup


class Ranks:
    """The followers of one divided model.

    links:  to each of them, in the order of ranks from 1.
    end:    ends what start made, once.
    on_loss: called once, in a thread, with what happened when a follower is gone.
    """

    def __init__(
        self,
        group: RankGroup,
        links: Sequence[socket.socket],
        *,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.group = group
        self._links = tuple(links)
        self._is_closing = threading.Event()
        # Once, with this or with the process.
        self._end = weakref.finalize(self, _close, self._is_closing, self._links, end)
        self.on_loss: Callable[[str], None] = lambda why: None
        self._loss: str | None = None
        self._numbers = count()
        self._dropped: deque[int] = deque()  # pages that nobody has any more
        for link in self._links:
            link.settimeout(None)
        threading.Thread(
            target=_watch,
            args=(weakref.ref(self), self._links, self._is_closing),
            name="cutaway-ranks",
            daemon=True,
        ).start()

    @property
    def size(self) -> int:
        """How many ranks there are, this one included."""
        return self.group.size

    def open(
        self,
        num_pages: Sequence[int],
        *,
        page_size: int,
        max_length: int,
        max_tokens: int | None,
        keeps: bool,
        is_plain: bool,
    ) -> Lead:
        """Have each follower make the same pages as this rank, and what runs over them."""
        number = next(self._numbers)
        self.say(
            OpenPages(number, list(num_pages), page_size, max_length, max_tokens, keeps, is_plain)
        )
        lead = Lead(self, number)
        # Not sent at once: this may run in any thread, in the middle of anything.
        weakref.finalize(lead, self._dropped.append, number).atexit = False
        return lead

    def say(self, order: Order) -> None:
        """Tell every follower. Raises: EngineLostError."""
        self.check()
        try:
            while self._dropped:
                number = self._dropped.popleft()
                for link in self._links:
                    send(link, ClosePages(number))
            for link in self._links:
                send(link, order)
        except OSError as fault:
            self.lose("a rank does not hear any more")
            raise EngineLostError("a rank of the model is gone") from fault

    def check(self) -> None:
        """Raise EngineLostError where a rank is gone."""
        if self._loss is not None:
            raise EngineLostError(self._loss)

    def lose(self, why: str) -> None:
        """Nothing is computed any more; the others end too."""
        if self._loss is None and not self._is_closing.is_set():
            self._loss = why
            print(f"cutaway: {why}; the engine ends.", file=sys.stderr, flush=True)
            self.close()
            self.on_loss(why)

    def close(self) -> None:
        """End the followers, and wait until they are gone."""
        self._end()


def _close(
    is_closing: threading.Event, links: Sequence[socket.socket], end: Callable[[], None]
) -> None:
    is_closing.set()
    for link in links:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
    end()


def _watch(
    known: weakref.ref[Ranks], links: Sequence[socket.socket], is_closing: threading.Event
) -> None:
    """Notice at once when a follower is gone: it says nothing after its start."""
    with suppress(OSError, ValueError):
        ready, _, _ = select.select(links, [], [])
        ranks = None if is_closing.is_set() else known()
        if ranks is not None:
            ranks.lose(f"rank {1 + links.index(ready[0])} of the model ended")


class Lead:
    """One pool's steps, in all ranks at once."""

    def __init__(self, ranks: Ranks, number: int) -> None:
        self._ranks, self._number = ranks, number

    def clear(self, pages: Sequence[Sequence[int]]) -> None:
        """Zero some pages of each group in the followers."""
        self._ranks.say(ClearPages(self._number, as_lists(pages)))

    def copy(self, copies: Sequence[tuple[int, int] | None]) -> None:
        """Copy of each group a page to another in the followers."""
        self._ranks.say(CopyPages(self._number, list(copies)))

    @contextmanager
    def step(self, numbers: Numbers, *, is_tapped: bool) -> Generator[None]:
        """Let the followers compute a step; within it this rank computes the same.

        Raises: EngineLostError where either cannot.
        """
        self._ranks.say(RunStep(self._number, numbers, is_tapped))
        try:
            with self._ranks.group.step():
                yield
        except BaseException as fault:
            self._ranks.lose("a step over several ranks raised in its middle")
            raise EngineLostError("a step over several ranks was not finished") from fault


class HeldSink:
    """A sink whose faults wait for the end of the step: ranks must not part in its middle."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._fault: BaseException | None = None

    def __call__(self, name: str, value: Tensor, layer: int | None) -> Tensor | None:
        """What the sink gives; nothing after it raised."""
        if self._fault is not None:
            return None
        try:
            return self._sink(name, value, layer)
        except BaseException as fault:
            self._fault = fault
            return None

    def settle(self) -> None:
        """Raise what the sink raised."""
        if self._fault is not None:
            raise self._fault
