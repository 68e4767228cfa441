"""How long looks will take: what their steps took when they were served, and how that came out.

It learns from what most of the latest looks took: one while somebody else keeps the machine busy
tells nothing of the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

from cutaway.engine.replay_plan import Run

LATEST: Final = 5  # looks whose median counts: two slow ones change nothing
LEAST_SECONDS: Final = 0.02  # below, what every look takes besides its steps would count


@dataclass(frozen=True)
class Cost:
    """What a look costs, known before it is spent.

    num_tokens: that go through the model again.   flops: of that, and of the view's own products.
    num_bytes:  of inner values that are held.
    seconds:    the same steps when they were served, and its own products at their best rate.
    """

    num_tokens: int
    flops: int
    num_bytes: int
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens again, {self.flops / 1e9:.1f} GFLOP, "
            f"{self.num_bytes / 2**20:.1f} MiB"
        )


class Pace:
    """What looks took, as a multiple of what their steps took when they were served."""

    def __init__(self) -> None:
        self._ratios = deque([1.0] * LATEST, maxlen=LATEST)

    def seconds(self, cost: Cost) -> float:
        """How long a look is expected to take."""
        return median(self._ratios) * cost.seconds

    def watched(self, cost: Cost, steps: Iterator[None]) -> Iterator[None]:
        """Go through the steps of a look and learn from the time that is spent in them.

        One that is left before its end tells nothing.
        """
        spent, began = 0.0, perf_counter()
        for _ in steps:
            spent += perf_counter() - began
            yield
            began = perf_counter()
        spent += perf_counter() - began
        if cost.seconds >= LEAST_SECONDS:
            self._ratios.append(spent / cost.seconds)


def served_seconds(runs: Sequence[Run]) -> float:
    """What the steps of runs took when they were served; those of no record at the others' rate."""
    known = [run for run in runs if _took(run) > 0]
    seconds, num_known = sum(map(_took, known)), sum(run.num_tokens for run in known)
    num_tokens = sum(run.num_tokens for run in runs)
    return seconds * num_tokens / num_known if num_known else 0.0


def best_rate(runs: Sequence[Run]) -> float:
    """Tokens a second of the fastest step; 0 where none was measured."""
    return max((run.num_tokens / _took(run) for run in runs if _took(run) > 0), default=0.0)


def _took(run: Run) -> float:
    return run.step.ended - run.step.began
