"""How long looks will take: what their steps took when they were served, and how that came out.

It learns from what most of the latest looks took: one while somebody else keeps the machine busy
tells nothing of the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final, TypeVar

from cutaway.replay.plan import Run

T = TypeVar("T")

LATEST: Final = 5  # looks whose median counts: two slow ones change nothing
LEAST_SECONDS: Final = 0.02  # below, what every look takes besides its steps would count


@dataclass(frozen=True)
class ViewCost:
    """What a look costs, known before it is spent.

    num_tokens: that go through the model again.   flops: of that, and of the view's own products.
    num_bytes:  of inner values that are held.
    seconds:    the same steps when they were served.
    own_flops, own_seconds: of the view's own work, and what that takes at the steps' best rate.
    """

    num_tokens: int
    flops: int
    num_bytes: int
    seconds: float = 0.0
    own_flops: int = 0
    own_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens again, {self.flops / 1e9:.1f} GFLOP, "
            f"{self.num_bytes / 2**20:.1f} MiB"
        )


class TimePredictor:
    """Predicts how long looks take from how long the latest took.

    Running again: as a multiple of what its steps took when they were served. Each view's own
    work: per unit of what it says that this is.
    """

    def __init__(self) -> None:
        self._ratios = deque([1.0] * LATEST, maxlen=LATEST)
        self._own: dict[tuple[str, bool], deque[float]] = {}

    def seconds(self, cost: ViewCost, view: str = "") -> float:
        """How long a look is expected to take."""
        own, kind = cost.own_seconds, _kind(cost, view)
        if kind in self._own:
            own = median(self._own[kind]) * max(1, cost.own_flops)
        return median(self._ratios) * cost.seconds + own

    def learn_replay(self, cost: ViewCost, seconds: float) -> None:
        """Learn from the time that running again took. One that was left tells nothing."""
        if cost.seconds >= LEAST_SECONDS:
            self._ratios.append(seconds / cost.seconds)

    def learn_view(self, cost: ViewCost, view: str, seconds: float) -> None:
        """Learn from the time that a view's own work took, its numbers' way into bytes included."""
        own = self._own.setdefault(_kind(cost, view), deque(maxlen=LATEST))
        own.append(seconds / max(1, cost.own_flops))


def _kind(cost: ViewCost, view: str) -> tuple[str, bool]:
    """One view has two where a part of it counts no work of its own: seconds are no rate then."""
    return view, cost.own_flops > 0


def time_steps(steps: Generator[None, None, T]) -> Generator[None, None, tuple[T, float]]:
    """Go through steps; what they give, and the seconds that were spent in them."""
    spent = 0.0
    while True:
        began = perf_counter()
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, spent + perf_counter() - began
        spent += perf_counter() - began
        yield


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
