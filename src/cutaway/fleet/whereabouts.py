"""Which engine has the record of an answer: for looks, events and comparisons. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST_KEPT: Final = 65536  # requests; a name and an id are some 300 bytes


class Whereabouts:
    """Engines by request, the latest requests; of a choice, the engine that had it last."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[str, list[str]] = OrderedDict()  # by choice

    def note(self, request_id: str, member: str, choices: list[int], *, num_choices: int) -> None:
        """An engine has some choices of a request."""
        names = self._kept.setdefault(request_id, [member] * num_choices)
        for choice in choices:
            names[choice] = member
        self._kept.move_to_end(request_id)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def find(self, request_id: str, choice: int) -> str | None:
        """The engine that has a choice of a request.

        Where ids of several prompts end in their numbers, also by what stands before those: choices
        are then counted over all prompts, as the ledger does.
        """
        names = self._kept.get(request_id)
        if names is not None:
            return names[choice] if 0 <= choice < len(names) else names[0]
        first = self._kept.get(f"{request_id}-0")
        if first is None or choice < 0:
            return None
        prompt, own = divmod(choice, len(first))
        names = self._kept.get(f"{request_id}-{prompt}")
        return None if names is None else names[own]
