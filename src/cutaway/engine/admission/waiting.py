"""The order in which waiting sequences are admitted.

Free of torch. It knows owners by name, and nothing of pages.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from itertools import chain

from cutaway.engine.sequence import Sequence


class WaitingQueue:
    """The owner with the least load is next; among equals, whose last turn was longest ago.

    Within one owner preempted sequences come first, the oldest of them before all; then it is
    first come, first served. With one owner only it is altogether so.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[str, deque[Sequence]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._owners.values())

    def __bool__(self) -> bool:
        return bool(self._owners)

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._owners.values())

    def first(self, loads: Counter[str]) -> Sequence:
        """The sequence whose turn it is. loads: what each owner has running."""
        if len(self._owners) == 1:
            return next(iter(self._owners.values()))[0]
        return self._owners[min(self._owners, key=lambda owner: loads[owner])][0]

    def add(self, sequence: Sequence) -> None:
        """A new sequence, behind those of its owner."""
        self._owners.setdefault(sequence.owner, deque()).append(sequence)

    def add_preempted(self, sequence: Sequence) -> None:
        """A sequence that had been admitted: before all of its owner that came later.

        The youngest is preempted first, so the last one in is the oldest.
        """
        self._owners.setdefault(sequence.owner, deque()).appendleft(sequence)

    def pop(self, sequence: Sequence) -> None:
        """Take the first of its owner out; its next turn comes after all that have as little."""
        queue = self._owners[sequence.owner]
        assert queue[0] is sequence, "sequences of one owner are admitted in order"
        queue.popleft()
        self._owners.move_to_end(sequence.owner)
        if not queue:
            del self._owners[sequence.owner]

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        queue = self._owners[sequence.owner]
        queue.remove(sequence)
        if not queue:
            del self._owners[sequence.owner]
