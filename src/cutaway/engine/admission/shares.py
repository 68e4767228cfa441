"""What each owner has of slots and pages, and who gives way when another has less. Free of torch.

A sequence weighs as much as its slot is of all slots, or its tokens are of all that fit, whichever
is more. An owner's load is what its running sequences weigh together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Items

from cutaway.engine.sequence import Sequence

# While prompts of owners with less load are computed, the others get a token for so many of theirs:
# so a first token takes at most 5/4 of its time alone, and who has most keeps a fifth of a step.
PROMPT_TOKENS_PER_TOKEN = 4
# The others get so many in any case. On a CPU that lengthens the step of a newcomer little, whose
# prompt is mostly cached: SmolLM2 on one core takes 12 ms for 8 tokens, 18 for 12 and 23 for 16.
LEAST_TOKENS = 4
# For so many steps whoever came is expected again: half a minute of short ones.
GUEST_STEPS = 2000


class Shares:
    """Loads of owners, in whole numbers: a slot weighs capacity_tokens."""

    def __init__(self, *, max_sequences: int, capacity_tokens: int) -> None:
        self._max_sequences = max_sequences
        self._capacity_tokens = capacity_tokens

    def weight(self, sequence: Sequence) -> int:
        """What a sequence adds to its owner's load while it runs."""
        return max(self._capacity_tokens, sequence.num_tokens * self._max_sequences)

    def loads(self, running: Iterable[Sequence]) -> Counter[str]:
        """The load of each owner that has something running."""
        loads: Counter[str] = Counter()
        for sequence in running:
            loads[sequence.owner] += self.weight(sequence)
        return loads

    def is_light(self, loads: Counter[str], newcomer: Sequence) -> bool:
        """Whether another owner has more than the newcomer's would have with it."""
        load = loads[newcomer.owner] + self.weight(newcomer)
        return any(other > load for owner, other in loads.items() if owner != newcomer.owner)

    def victims_for(self, running: Items[Sequence], newcomer: Sequence) -> Iterable[Sequence]:
        """Who gives way for a newcomer, one after another: the heaviest owner's youngest.

        Without it its owner still has as much as the newcomer's with it, so the newcomer will
        not give way for it in turn; and it is not alone, so the oldest of all never gives way.
        """
        left = list(running)
        loads = self.loads(left)
        load = loads[newcomer.owner] + self.weight(newcomer)
        del loads[newcomer.owner]
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


class Guests:
    """Owners that came lately, and so may come again while others fill the steps."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()

    def note(self, owner: str, step: int) -> None:
        """One of an owner's sequences came or ended."""
        self._last[owner] = step
        self._last.move_to_end(owner)

    def forget_those_before(self, step: int) -> None:
        """Expect nobody any more who was last seen GUEST_STEPS ago."""
        while self._last and step - next(iter(self._last.values())) > GUEST_STEPS:
            self._last.popitem(last=False)

    def has_room_to_keep(self, running: Items[Sequence]) -> bool:
        """Whether somebody runs several sequences while others than who does come lately."""
        if len(running) < 2:
            return False
        crowds = {owner for owner, num in Counter(s.owner for s in running).items() if num > 1}
        return bool(crowds) and any(owner not in crowds for owner in self._last)


def _youngest(running: Items[Sequence], owner: str) -> Sequence:
    return next(each for each in reversed(running) if each.owner == owner)
