"""What a drafter does. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Proposes tokens; a wrong guess costs time and never changes the answer."""

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens that may follow token_ids; empty for no guess."""
        ...
