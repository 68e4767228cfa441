"""The order in which waiting sequences are admitted.

Free of torch. It knows owners by name, and nothing of pages.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from itertools import chain

from cutaway.engine.sequence import Sequence


class WaitingQueue:
    """The owner with the least load is next; among equals, whose last turn was longest ago.

    Within one owner preempted sequences come first, the oldest of them before all; then it is
    first come, first served. With one owner only it is altogether so.
    """

    def __init__(self) -> None:
        # In the order of their last turns, which are numbered so that one can be given back.
        self._owners: OrderedDict[str, deque[Sequence]] = OrderedDict()
        self._turns: dict[str, int] = {}
        self._num_turns = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._owners.values())

    def __bool__(self) -> bool:
        return bool(self._owners)

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._owners.values())

    def first(self, loads: Mapping[str, int]) -> Sequence:
        """The sequence whose turn it is. loads: what each owner has running, 0 of any other."""
        least: tuple[int, Sequence] | None = None
        for owner, queue in self._owners.items():
            load = loads.get(owner, 0)
            if least is None or load < least[0]:
                least = load, queue[0]
            if not load:
                break  # nobody has less: of a crowd of newcomers none but the first is asked
        assert least is not None, "somebody waits"
        return least[1]

    def add(self, sequence: Sequence) -> None:
        """A new sequence, behind those of its owner."""
        self._queue_of(sequence.owner).append(sequence)

    def add_preempted(self, sequence: Sequence) -> None:
        """A sequence that had been admitted: before all of its owner that came later.

        The youngest is preempted first, so the last one in is the oldest.
        """
        self._queue_of(sequence.owner).appendleft(sequence)

    def pop(self, sequence: Sequence) -> int:
        """Take the first of its owner out; its next turn comes after all that have as little.

        Returns what give_back wants to know.
        """
        owner, queue = sequence.owner, self._owners[sequence.owner]
        assert queue[0] is sequence, "sequences of one owner are admitted in order"
        turn = self._turns[owner]
        queue.popleft()
        self._owners.move_to_end(owner)
        self._turns[owner] = self._number_turn()
        self._drop_if_empty(owner)
        return turn

    def give_back(self, sequence: Sequence, turn: int) -> None:
        """Put back who was taken out and got nothing, and its owner to where it stood then.

        turn: what pop returned.
        """
        self.add_preempted(sequence)
        turns = self._turns
        turns[sequence.owner] = min(turn, turns[sequence.owner])
        self._owners = OrderedDict(sorted(self._owners.items(), key=lambda each: turns[each[0]]))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        self._owners[sequence.owner].remove(sequence)
        self._drop_if_empty(sequence.owner)

    def _queue_of(self, owner: str) -> deque[Sequence]:
        queue = self._owners.get(owner)
        if queue is None:
            queue = self._owners[owner] = deque()
            self._turns[owner] = self._number_turn()
        return queue

    def _number_turn(self) -> int:
        self._num_turns += 1
        return self._num_turns

    def _drop_if_empty(self, owner: str) -> None:
        if not self._owners[owner]:
            del self._owners[owner], self._turns[owner]
