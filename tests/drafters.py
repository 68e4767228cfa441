"""Drafters for tests: guesses made without knowing the model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cutaway.engine.drafters import Draft, Wish


class EachAlone:
    """A drafter that guesses for one answer at a time, from its tokens alone."""

    only_kind = None
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
