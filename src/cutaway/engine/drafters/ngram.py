"""Drafts copied from earlier in the same text: prompt lookup. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NGramDrafter:
    """Finds the latest earlier place where the last tokens stood, and proposes what followed.

    Source: Saxena 2023, prompt lookup decoding.
    """

    num_drafts: int = 4
    longest: int = 3  # tokens that must agree, tried first
    shortest: int = 2
    reach: int = 2048  # tokens looked back over

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        """What followed the latest earlier place with the same last tokens; [] without one."""
        recent = list(token_ids[-self.reach :])
        for length in range(self.longest, self.shortest - 1, -1):
            tail = recent[-length:]
            for start in range(len(recent) - length - 1, -1, -1):
                if recent[start : start + length] == tail:
                    return recent[start + length : start + length + self.num_drafts]
        return []
