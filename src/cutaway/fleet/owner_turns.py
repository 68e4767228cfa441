"""Requests that no engine has yet, in the turns of their owners. Free of clocks and of engines."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """Who waits: whose share it takes, how many answers it asks for, and whether it had begun."""

    @property
    def owner(self) -> str:
        """Between whom turns go round."""
        ...

    @property
    def num_answers(self) -> int:
        """That it asks for."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether an engine had it already."""
        ...


W = TypeVar("W", bound=Waiting)


class Turns(Generic[W]):
    """The owner with the fewest answers in engines is next; whoever had begun goes before all.

    Among equals it is the one whose last turn was longest ago; within an owner, who came first.
    """

    def __init__(self) -> None:
        self._begun: deque[W] = deque()
        self._owners: OrderedDict[str, deque[W]] = OrderedDict()
        self._bound: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._begun) + sum(map(len, self._owners.values()))

    def add(self, waiting: W) -> None:
        """Somebody waits from now on."""
        if waiting.has_begun:
            self._begun.append(waiting)
        else:
            self._owners.setdefault(waiting.owner, deque()).append(waiting)

    def remove(self, waiting: W) -> None:
        """Somebody waits no longer; may be said again."""
        queue = self._begun if waiting.has_begun else self._owners.get(waiting.owner)
        if queue is None or waiting not in queue:
            return
        queue.remove(waiting)
        if not waiting.has_begun:
            self._owners.move_to_end(waiting.owner)
            if not queue:
                del self._owners[waiting.owner]

    def bind(self, waiting: W) -> None:
        """Somebody's turn has come: an engine has it."""
        self.remove(waiting)
        self._bound[waiting.owner] += waiting.num_answers

    def release(self, waiting: W) -> None:
        """The engine has it no more."""
        self._bound[waiting.owner] -= waiting.num_answers
        if self._bound[waiting.owner] <= 0:
            del self._bound[waiting.owner]  # owners come and go

    def in_order(self, most: int) -> Iterator[W]:
        """So many of those whose turn is next, as if each were bound when it is its turn."""
        taken = list(self._begun)[:most]
        heap = [(self._bound[owner], place, 0, owner) for place, owner in enumerate(self._owners)]
        heapq.heapify(heap)
        while heap and len(taken) < most:
            load, place, index, owner = heapq.heappop(heap)
            queue = self._owners[owner]
            taken.append(queue[index])
            if index + 1 < len(queue):
                # Of another turn, so behind all with as little.
                after = place + len(self._owners)
                load += queue[index].num_answers
                heapq.heappush(heap, (load, after, index + 1, owner))
        yield from taken
