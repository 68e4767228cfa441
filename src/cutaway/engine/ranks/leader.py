"""Rank 0's side of a divided model: it hands each step to the followers, and computes its own part.

A group lives and dies as one: when a rank is gone, or a step raised in the middle, no later step
can be right, and the engine ends. Whoever started it starts it again.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, Queue

from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.core.step import Numbers, Sink
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.ranks.rank_messages import (
    AtStage,
    CannotFollow,
    ClearPages,
    ClosePages,
    CopyPages,
    OpenPages,
    Order,
    PreparePages,
    Reply,
    RunStep,
    as_lists,
    receive_reply,
    send,
)
from cutaway.host.sealed_socket import ByteSocket
from cutaway.parallel.rank_grid import RankGrid


class Ranks:
    """The followers of one divided model.

    links:  to each of them, in the order of ranks from 1.
    seconds: that a follower may take to make its pages.
    weight_bytes: of each of them.
    end:    ends what start made, once.
    on_loss: called once, in a thread, with what happened when a follower is gone.
    """

    def __init__(
        self,
        grid: RankGrid,
        links: Sequence[ByteSocket],
        *,
        end: Callable[[], None] = lambda: None,
        seconds: float = 60.0,
        weight_bytes: Sequence[int] = (),
    ) -> None:
        self.grid = grid
        self._links, self._seconds = tuple(links), seconds
        self._heard: Queue[int | None] = Queue()  # ranks that have made their pages; None: a loss
        self.weight_bytes = tuple(weight_bytes)
        self.page_bytes = [0] * len(self._links)  # of the pages that each made last
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
        return self.grid.size

    def open(
        self,
        num_pages: Sequence[int],
        *,
        page_size: int,
        max_length: int,
        max_tokens: int | None,
        keeps: bool,
        is_plain: bool,
        graphs: bool,
    ) -> Lead:
        """Have each follower make the same pages as this rank, and what runs over them.

        Raises: ConfigError naming a rank that cannot.
        """
        number = next(self._numbers)
        self.say(
            OpenPages(
                number=number,
                num_pages=list(num_pages),
                page_size=page_size,
                max_length=max_length,
                max_tokens=max_tokens,
                keeps=keeps,
                is_plain=is_plain,
                graphs=graphs,
            )
        )
        self._wait_opened(num_pages)
        lead = Lead(self, number)
        # Not sent at once: this may run in any thread, in the middle of anything.
        weakref.finalize(lead, self._dropped.append, number).atexit = False
        return lead

    def _wait_opened(self, num_pages: Sequence[int]) -> None:
        missing, end = set(range(1, self.size)), time.monotonic() + self._seconds
        while missing:
            with suppress(Empty):
                rank = self._heard.get(timeout=max(0.0, end - time.monotonic()))
                if rank is not None:
                    missing.discard(rank)
                    continue
            if self._loss is None:
                self.lose(f"rank {min(missing)} of {self.size} did not make its pages in time")
            raise ConfigError(
                f"{self._loss}. Each rank was to make {sum(num_pages)} pages; set cache_tokens to "
                "less, or start with tensor 1."
            )

    def hear(self, rank: int, said: Reply) -> bool:
        """Take in what a follower says; whether it goes on. Called by who watches."""
        if isinstance(said, CannotFollow):
            self.lose(f"rank {rank} of {self.size}: {said.why.rstrip('.')}")
            return False
        assert isinstance(said, AtStage), "who has joined asks no more"
        self.page_bytes[rank - 1] = said.num_bytes
        self._heard.put(rank)
        return True

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

    @property
    def is_lost(self) -> bool:
        """Whether one is gone, and with it all."""
        return self._loss is not None

    @property
    def loss(self) -> str:
        """What has become of them, once one is gone."""
        return self._loss or "the ranks of the model were closed"

    def check(self) -> None:
        """Raise EngineLostError where a rank is gone."""
        if self._loss is not None:
            raise EngineLostError(self._loss)

    def wait_for_reason(self, seconds: float) -> None:
        """Let a rank that cannot go on say why, before its absence is told."""
        end = time.monotonic() + seconds
        while self._loss is None and time.monotonic() < end:
            time.sleep(0.01)

    def lose(self, why: str) -> None:
        """Nothing is computed any more; the others end too."""
        if self._loss is None and not self._is_closing.is_set():
            self._loss = why
            self._heard.put(None)
            print(f"cutaway: {why}; the engine ends.", file=sys.stderr, flush=True)
            self.close()
            self.on_loss(why)

    def close(self) -> None:
        """End the followers, and wait until they are gone."""
        self._end()


def _close(
    is_closing: threading.Event, links: Sequence[ByteSocket], end: Callable[[], None]
) -> None:
    is_closing.set()
    for link in links:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
    end()


def _watch(
    known: weakref.ref[Ranks], links: Sequence[ByteSocket], is_closing: threading.Event
) -> None:
    """Hear what followers say, and notice at once when one is gone."""
    with suppress(OSError, ValueError):
        while True:
            ready, _, _ = select.select(links, [], [])
            ranks = None if is_closing.is_set() else known()
            if ranks is None:
                return
            rank = 1 + links.index(ready[0])
            said = receive_reply(ready[0])
            if said is None:
                ranks.lose(f"rank {rank} of the model ended")
            if said is None or not ranks.hear(rank, said):
                return
            del ranks  # who has it may let it go meanwhile


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
    def prepare(self) -> Generator[None]:
        """Let the followers capture their steps; within it this rank captures the same."""
        self._ranks.say(PreparePages(self._number))
        with self._ranks.grid.step():
            yield

    @contextmanager
    def step(self, numbers: Numbers, *, sink: Sink | None) -> Generator[None]:
        """Let the followers compute a step; within it this rank computes the same.

        sink: sees what they see of layers that only they have.
        Raises: EngineLostError where either cannot.
        """
        grid = self._ranks.grid
        self._ranks.say(RunStep(self._number, numbers, sink is not None))
        try:
            grid.watch(sink)
            with grid.step():
                yield
        except BaseException as fault:
            self._ranks.wait_for_reason(1.0)
            self._ranks.lose("a step over several ranks raised in its middle")
            raise EngineLostError(self._ranks.loss) from fault
        finally:
            grid.watch(None)


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
