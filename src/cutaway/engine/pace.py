"""How long looks will take: what their steps took when they were served, and how that came out.

What it does not know: that somebody else keeps the machine busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from cutaway.engine.replay_plan import Run


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
        self._ratio = 1.0

    def seconds(self, cost: Cost) -> float:
        """How long a look is expected to take."""
        return self._ratio * cost.seconds

    def watched(self, cost: Cost, steps: Iterator[None]) -> Iterator[None]:
        """Go through the steps of a look and learn from the time that is spent in them."""
        spent, began = 0.0, perf_counter()
        for _ in steps:
            spent += perf_counter() - began
            yield
            began = perf_counter()
        spent += perf_counter() - began
        if cost.seconds > 0:
            # Half of the way to the latest: one look beside other work does not decide alone.
            self._ratio = (self._ratio + spent / cost.seconds) / 2


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
