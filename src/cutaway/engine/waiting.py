"""The order in which waiting sequences are admitted.

Free of torch. It knows owners by name, and nothing of pages.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from cutaway.engine.sequence import Sequence


class WaitingQueue:
    """Preempted sequences first, the oldest of them before all; then owners in turn.

    Within one owner it is first come, first served; with one owner only, altogether so. Between
    owners each gets one admission per round, so that a flood of one delays the others by a round.
    """

    def __init__(self) -> None:
        # The scheduler preempts its youngest first, so the last one in is the oldest.
        self._preempted: list[Sequence] = []
        self._owners: OrderedDict[str, deque[Sequence]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._preempted) + sum(len(queue) for queue in self._owners.values())

    def __bool__(self) -> bool:
        return bool(self._preempted or self._owners)

    def __iter__(self) -> Iterator[Sequence]:
        yield from reversed(self._preempted)
        for queue in self._owners.values():
            yield from queue

    @property
    def first(self) -> Sequence:
        """The sequence whose turn it is."""
        if self._preempted:
            return self._preempted[-1]
        return next(iter(self._owners.values()))[0]

    def add(self, sequence: Sequence) -> None:
        """A new sequence, behind those of its owner."""
        self._owners.setdefault(sequence.request.owner, deque()).append(sequence)

    def add_preempted(self, sequence: Sequence) -> None:
        """A sequence that had been admitted: before all that came later."""
        self._preempted.append(sequence)

    def pop(self) -> Sequence:
        """Take the first out; its owner's next turn comes after all other owners'."""
        if self._preempted:
            return self._preempted.pop()
        owner, queue = next(iter(self._owners.items()))
        sequence = queue.popleft()
        if queue:
            self._owners.move_to_end(owner)
        else:
            del self._owners[owner]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        if sequence in self._preempted:
            self._preempted.remove(sequence)
            return
        owner = sequence.request.owner
        self._owners[owner].remove(sequence)
        if not self._owners[owner]:
            del self._owners[owner]
