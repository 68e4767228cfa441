"""Which engine has the record of an answer: for looks, events and comparisons. Bounded.

An engine that was started anew has none of those before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

MOST_KEPT: Final = 65536  # requests; a name and an id are some 300 bytes


class Keeper(NamedTuple):
    """An engine at one of its starts."""

    member: str
    start: int


class Whereabouts:
    """Engines by request, the latest requests; of a choice, the engine that had it last."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[str, list[Keeper]] = OrderedDict()  # by choice

    def note(
        self, request_id: str, keeper: Keeper, choices: Iterable[int], *, num_choices: int
    ) -> None:
        """An engine has some choices of a request."""
        keepers = self._kept.setdefault(request_id, [keeper] * num_choices)
        for choice in choices:
            keepers[choice] = keeper
        self._kept.move_to_end(request_id)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def find(self, request_id: str, choice: int) -> tuple[str, Keeper] | None:
        """The request's own id, and the engine that has a choice of it.

        Where ids of several prompts end in their numbers, also by what stands before those: choices
        are then counted over all prompts, as the ledger does.
        """
        keepers = self._kept.get(request_id)
        if keepers is not None:
            return request_id, keepers[choice if 0 <= choice < len(keepers) else 0]
        first = self._kept.get(f"{request_id}-0")
        if first is None or choice < 0:
            return None
        prompt, own = divmod(choice, len(first))
        request_id = f"{request_id}-{prompt}"
        keepers = self._kept.get(request_id)
        return None if keepers is None else (request_id, keepers[own])
