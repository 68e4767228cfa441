"""Recordings of a model that replays hand on: the next one begins without recording it again.

Recording SmolLM2 takes longer than running fifty tokens through it. A spare one has pages and room
for steps of its own, which are cleared when it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cutaway.cache.pool import Pool
from cutaway.engine.runner import Runner

MOST_BYTES: Final = 256 * 2**20  # of one that waits
LEAST_PAGES: Final = 32  # of one that is made, so that the next, longer answer fits
LEAST_TOKENS: Final = 32


@dataclass(frozen=True, eq=False)
class SpareRunner:
    """What one replay ran on. num_pages: of each group.   max_tokens: of a step.   keeps: taps."""

    pool: Pool
    runner: Runner
    num_pages: int
    max_tokens: int
    keeps: bool

    def fits(self, *, num_pages: int, max_tokens: int, keeps: bool) -> bool:
        """Whether a replay of that size can run on it."""
        is_large = self.num_pages >= num_pages and self.max_tokens >= max_tokens
        return is_large and self.keeps == keeps

    @property
    def num_bytes(self) -> int:
        """Of its pages and of the room of a step."""
        return self.pool.num_bytes + self.runner.num_bytes


@dataclass(eq=False)
class SpareRunners:
    """At most one that keeps inner values, and one that does not: what is used goes out of here.

    recording_seconds: that those took which were made because no spare one fitted, all together.
    """

    recording_seconds: float = 0.0
    _spare: list[SpareRunner] = field(default_factory=list[SpareRunner])

    def take(self, *, num_pages: int, max_tokens: int, keeps: bool) -> SpareRunner | None:
        """One of that size with its pages cleared, or None where there is none."""
        for each in self._spare:
            if each.fits(num_pages=num_pages, max_tokens=max_tokens, keeps=keeps):
                self._spare.remove(each)
                num_groups = 1 + max((layer.group for layer in each.pool.layers), default=0)
                each.runner.clear([range(each.num_pages)] * num_groups)
                return each
        return None

    def has(self, *, num_pages: int, max_tokens: int, keeps: bool) -> bool:
        """Whether one of that size waits."""
        return any(
            each.fits(num_pages=num_pages, max_tokens=max_tokens, keeps=keeps)
            for each in self._spare
        )

    def give_back(self, used: SpareRunner) -> None:
        """Keep it for the next one, unless it is too large."""
        if used.num_bytes <= MOST_BYTES:
            self._spare = [each for each in self._spare if each.keeps != used.keeps]
            self._spare.append(used)


def round_up(count: int, least: int) -> int:
    """A power of two from the least up, so that a few more pages or tokens fit as well."""
    return max(least, 1 << (count - 1).bit_length())
