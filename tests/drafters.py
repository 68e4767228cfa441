"""Drafters for tests: guesses made without knowing the model."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

from cutaway.engine.drafters import Draft, Wish


class EachAlone:
    """A drafter that guesses for one answer at a time, from its tokens alone."""

    only_kind = None
    heeds_bounds = False
    is_behind = False

    def guess(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens that may follow; any number."""
        raise NotImplementedError

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        return [Draft(self.guess(each.token_ids)[: each.most]) for each in wishes]

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        return True

    def finish(self, key: Hashable) -> None:
        pass


class SaidBefore(EachAlone):
    """Guesses some tokens that the answer, or its prompt, has said at random places."""

    def __init__(self) -> None:
        self._chance = random.Random(3)

    def guess(self, token_ids: Sequence[int]) -> list[int]:
        return self._chance.choices(token_ids, k=self._chance.randrange(10))


class InTwoMinds(EachAlone):
    """Knows the answers; of its two versions one is right for a while, or the other, or none."""

    def __init__(self, answers: Sequence[Sequence[int]], seed: int) -> None:
        self._answers, self._chance = answers, random.Random(seed)

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        return [self._draft(list(wish.token_ids), wish.most) for wish in wishes]

    def _draft(self, known: list[int], most: int) -> Draft:
        chance = self._chance
        said = next((a for a in self._answers if list(a[: len(known)]) == known), known)
        right = list(said[len(known) : len(known) + min(most, chance.randint(1, 12))])
        ways = [list(right), list(right)]
        for way in ways:
            if way and chance.random() < 0.8:
                place = chance.randrange(len(way))
                way[place:] = [chance.randrange(256) for _ in way[place:]]
        return Draft(ways[0], "known", other_token_ids=ways[1])
