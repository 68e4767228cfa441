"""What each owner has of slots and pages, and who gives way when another has less. Free of torch.

A sequence weighs as much as its slot is of all slots, or its tokens are of all that fit, whichever
is more. An owner's load is what its running sequences weigh together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Set
from collections.abc import Sequence as Items

from cutaway.engine.sequence import Sequence

# While prompts of owners with less load are computed, the others get a token for so many of theirs:
# so a first token takes at most 5/4 of its time alone, and who has most keeps a fifth of a step.
PROMPT_TOKENS_PER_TOKEN = 4
# The others fill a step up to so many in any case: weights are read once for all. SmolLM2 on one
# core takes 7.2 ms for 1 token and for 8 alike, 10.5 for 12 and 13 for 16 (minima of 30).
SHORT_STEP_TOKENS = 8
# For so many steps whoever came is expected again: half a minute of short ones.
GUEST_STEPS = 2000


class Loads(dict[str, int]):
    """The load of each owner that has something running; of any other it is 0.

    Made several times in a step: a Counter takes six times as long to make.
    """

    def __missing__(self, owner: str) -> int:
        return 0


class Shares:
    """Loads of owners, in whole numbers: a slot weighs capacity_tokens."""

    def __init__(self, *, max_sequences: int, capacity_tokens: int) -> None:
        self._max_sequences = max_sequences
        self._capacity_tokens = capacity_tokens

    def weight(self, sequence: Sequence) -> int:
        """What a sequence adds to its owner's load while it runs."""
        return max(self._capacity_tokens, len(sequence.token_ids) * self._max_sequences)

    def loads(self, running: Iterable[Sequence]) -> Loads:
        """The load of each owner that has something running."""
        loads = Loads()
        slot, of_token = self._capacity_tokens, self._max_sequences
        for sequence in running:  # several times in a step: without a call for each
            owner, weight = sequence.owner, len(sequence.token_ids) * of_token
            loads[owner] = loads.get(owner, 0) + (weight if weight > slot else slot)
        return loads

    def is_light(self, loads: Loads, newcomer: Sequence) -> bool:
        """Whether another owner has more than the newcomer's would have with it."""
        own = newcomer.owner
        load = loads[own] + self.weight(newcomer)
        return any([other > load for owner, other in loads.items() if owner != own])

    def victims_for(self, running: Items[Sequence], newcomer: Sequence) -> Iterable[Sequence]:
        """Who gives way for a newcomer, one after another: the heaviest owner's youngest.

        Without it its owner still has as much as the newcomer's with it, so the newcomer will
        not give way for it in turn; and it is not alone, so the oldest of all never gives way.
        """
        left = list(running)
        loads = self.loads(left)
        load = loads[newcomer.owner] + self.weight(newcomer)
        loads.pop(newcomer.owner, None)
        while loads:
            owner = max(loads, key=lambda each: loads[each])
            victim = _youngest(left, owner)
            if loads[owner] - self.weight(victim) < load:
                return
            yield victim
            left.remove(victim)
            loads[owner] -= self.weight(victim)

    def victim(self, running: Items[Sequence], grower: Sequence) -> Sequence | None:
        """Who is preempted when pages are short for a running sequence; None when it waits.

        The youngest of whoever has most, the oldest sequence apart: that takes from everybody.
        Others take from younger ones, and from whoever has as much as they even without it.
        """
        oldest, *others = running
        loads = self.loads(others)
        if not others:
            return None
        # Where several have most, the youngest sequence of theirs gives way.
        found = max(reversed(others), key=lambda each: loads[each.owner])
        if grower is oldest or found is grower:
            return found if found is not grower else None
        if others.index(found) > others.index(grower):
            return found
        loads[oldest.owner] += self.weight(oldest)
        is_heavier = loads[found.owner] - self.weight(found) >= loads[grower.owner]
        return found if is_heavier else None


def share_beside(num_prompt: int) -> int:
    """Tokens of who has most beside so many of a light owner's prompts."""
    return max(1, num_prompt // PROMPT_TOKENS_PER_TOKEN, SHORT_STEP_TOKENS - num_prompt)


class Owners:
    """Who is here with how many sequences, and who came lately, and so may come again."""

    def __init__(self) -> None:
        self._num: Counter[str] = Counter()  # sequences that have not ended: they run or wait
        self._crowds: set[str] = set()
        self._last: OrderedDict[str, int] = OrderedDict()

    @property
    def crowds(self) -> Set[str]:
        """Owners with several sequences, be it that one runs while the others wait for it."""
        return self._crowds

    def come(self, owner: str, step: int) -> None:
        """A sequence of an owner was added."""
        self._num[owner] += 1
        if self._num[owner] > 1:
            self._crowds.add(owner)
        self._see(owner, step)

    def leave(self, owner: str, step: int) -> None:
        """A sequence of an owner has ended."""
        self._num[owner] -= 1
        if self._num[owner] < 2:
            self._crowds.discard(owner)
        if self._num[owner] < 1:
            del self._num[owner]
        self._see(owner, step)

    def forget_those_before(self, step: int) -> None:
        """Expect nobody any more who was last seen GUEST_STEPS ago."""
        while self._last and step - next(iter(self._last.values())) > GUEST_STEPS:
            self._last.popitem(last=False)

    @property
    def has_room_to_keep(self) -> bool:
        """Whether there is a crowd, and others than crowds come lately."""
        return bool(self._crowds) and any(owner not in self._crowds for owner in self._last)

    def _see(self, owner: str, step: int) -> None:
        self._last[owner] = step
        self._last.move_to_end(owner)


def _youngest(running: Items[Sequence], owner: str) -> Sequence:
    return next(each for each in reversed(running) if each.owner == owner)
