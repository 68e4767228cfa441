"""What a drafter does. Free of torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Wish:
    """One answer that may be given guesses.

    key:       stays the same for all of the answer.
    token_ids: all that is known of it, the prompt included; it only grows.
    most:      guesses that can be taken.
    """

    key: Hashable
    token_ids: Sequence[int]
    most: int


@dataclass(frozen=True)
class Draft:
    """Guesses for one answer, and how sure the drafter is of them.

    kind: guesses of one kind turn out right about equally often; the controller counts by it.
    """

    token_ids: list[int] = field(default_factory=list[int])
    kind: str = ""


class Drafter(Protocol):
    """Proposes tokens; a wrong guess costs time and never changes the answer.

    All that a step needs is asked for at once, so that a drafter may compute it in one batch. What
    it keeps of an answer it keeps by the answer's key.
    """

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """One draft for each wish, in order, at most as long as wished; empty for no guess.

        An answer may come with fewer tokens than before only if it begins anew.
        """
        ...

    def finish(self, key: Hashable) -> None:
        """Forget an answer. One that never came is no fault."""
        ...
