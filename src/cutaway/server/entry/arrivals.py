"""Requests on their way from the door to the engine: whose they are, and how many come that far.

The engine counts what is in it. Of a burst that comes at once all would be parsed and tokenized
before the first is in: so an owner's that are read and not there yet count like those inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set

from cutaway.server.error_replies import HttpError


class Arrivals:
    """Which requests may go on.

    refusal:   why one of a path and an owner is not taken in now, if it is not; the number is how
               many of that owner's are on their way.
    answering: paths that lead to the engine.
    """

    def __init__(
        self, refusal: Callable[[str, str, int], HttpError | None], answering: Set[str]
    ) -> None:
        self._refusal, self._answering = refusal, answering
        self._coming: Counter[str] = Counter()

    def num_coming(self, owner: str) -> int:
        """How many of an owner's are on their way."""
        return self._coming[owner]

    def refusal(self, path: str, owner: str) -> HttpError | None:
        """Why an owner's request is not taken in now, if it is not."""
        return self._refusal(path, owner, self._coming[owner])

    def begin(self, path: str, owner: str) -> Callable[[], None]:
        """Count one whose body is read; what is returned is called when the engine has it.

        It may be called again, and is where the request ends before.
        """
        if path not in self._answering:
            return do_nothing
        self._coming[owner] += 1
        is_over = False

        def arrive() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._coming[owner] -= 1
            if not self._coming[owner]:
                del self._coming[owner]  # owners come and go

        return arrive


def do_nothing() -> None:
    """What is left to do for a request that is not on its way."""
