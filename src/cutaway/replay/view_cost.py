"""How long looks will take: the pace of the steps that served an answer, and how looks came out.

It learns from what most of the latest looks took: one while somebody else keeps the machine busy
tells nothing of the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import median
from time import perf_counter
from typing import Final, TypeVar

import torch

from cutaway.core.work import ModelWork
from cutaway.replay.plan import Run
from cutaway.sampling.threads import one_thread
from cutaway.trace.cost import Rates, fit_rates
from cutaway.trace.records import StepRecord

T = TypeVar("T")

LATEST: Final = 5  # looks whose median counts: two slow ones change nothing
LEAST_SECONDS: Final = 0.02  # of work; below, what every look takes besides would count as its rate
ALIKE: Final = 1.2  # works that differ by less say nothing of how seconds grow
MOST_FITTED: Final = 64  # steps, from the smallest to the largest, that tell their pace


@dataclass(frozen=True)
class ViewCost:
    """What a look costs, known before it is spent.

    num_tokens: that go through the model again.   flops: of that, and of the view's own products.
    num_bytes:  of inner values that are held.
    seconds:    of its steps, at the pace of those that served the answer.
    own_work, own_seconds: operations of the view's own, and their time: of products at the rate of
        long steps, of numbers that it goes through at this machine's pace (seconds_a_number).
    is_fresh:   whether the model has to be recorded first.
    """

    num_tokens: int
    flops: int
    num_bytes: int
    seconds: float = 0.0
    own_work: int = 0
    own_seconds: float = 0.0
    is_fresh: bool = False

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens again, {self.flops / 1e9:.1f} GFLOP, "
            f"{self.num_bytes / 2**20:.1f} MiB"
        )


class TimePredictor:
    """Predicts how long looks take from how long the latest took.

    Running again: as a multiple of what its steps would take at the pace of serving, beside what a
    recording takes where one has to be made first. Each view's own work: as a line over what it
    says that this is; of a view that was not seen yet as others came out when they were new. Those
    with work to do tell at which rate it is done, those with hardly any what a first look takes
    besides: code and memory that nobody had used take so long whatever the work. That says nothing
    of the next look: it counts until the second one came, less what it was elsewhere.

    recording_seconds: that the engine's own recording took; the first look makes one alike.
    """

    def __init__(self, recording_seconds: float = 0.0) -> None:
        # Two looks decide, the one that nobody saw and the first that came: one alone may be slow.
        self._ratios = deque([1.0], maxlen=LATEST)
        self._recordings = deque([recording_seconds], maxlen=LATEST)
        self._firsts: dict[tuple[str, bool], WorkLine] = {}  # of views that were seen once
        self._own: dict[tuple[str, bool], WorkLine] = {}  # of all others, without that one
        self._first_ratios = deque([1.0], maxlen=LATEST)  # of first looks with work to do
        self._besides = deque([0.0], maxlen=LATEST)  # seconds of those with hardly any
        self._once = deque([0.0], maxlen=LATEST)  # seconds that first looks took over second ones

    def seconds(self, cost: ViewCost, view: str = "") -> float:
        """How long a look is expected to take."""
        recording = median(self._recordings) if cost.is_fresh else 0.0
        own = self._own_seconds(cost, _kind(cost, view))
        return recording + median(self._ratios) * cost.seconds + own

    def _own_seconds(self, cost: ViewCost, kind: tuple[str, bool]) -> float:
        if kind in self._own:
            return self._own[kind].seconds(cost.own_work)
        if kind in self._firsts:
            return max(0.0, self._firsts[kind].seconds(cost.own_work) - median(self._once))
        return median(self._besides) + median(self._first_ratios) * cost.own_seconds

    def learn_replay(self, cost: ViewCost, seconds: float, *, recording: float = 0.0) -> None:
        """Learn from the time that running again took. One that was left tells nothing.

        recording: seconds of it in which the model was recorded.
        """
        if recording:
            self._recordings.append(recording)
        if cost.seconds >= LEAST_SECONDS:
            self._ratios.append(max(0.0, seconds - recording) / cost.seconds)

    def learn_view(self, cost: ViewCost, view: str, seconds: float) -> None:
        """Learn from the time that a view's own work took, its numbers' way into bytes included."""
        kind = _kind(cost, view)
        if kind in self._own:
            self._own[kind].learn(cost.own_work, seconds)
        elif kind in self._firsts:
            first = self._firsts.pop(kind).seconds(cost.own_work)
            self._once.append(max(0.0, first - seconds))
            self._own[kind] = WorkLine(cost.own_work, seconds)
        else:
            self._firsts[kind] = WorkLine(cost.own_work, seconds)
            if cost.own_seconds >= LEAST_SECONDS:
                self._first_ratios.append(seconds / cost.own_seconds)
            else:
                self._besides.append(max(0.0, seconds - cost.own_seconds))


class WorkLine:
    """Seconds over work: what is always there, and what grows with the work, from the latest."""

    def __init__(self, work: int, seconds: float) -> None:
        self._seen = deque([(work, seconds)], maxlen=LATEST)

    def learn(self, work: int, seconds: float) -> None:
        """One more of the latest."""
        self._seen.append((work, seconds))

    def seconds(self, work: int) -> float:
        """What so much work is expected to take."""
        slopes = [
            (one[1] - other[1]) / (one[0] - other[0])
            for one, other in combinations(self._seen, 2)
            if max(one[0], other[0]) > ALIKE * min(one[0], other[0])
        ]
        if not slopes:
            # Of one size alone nobody knows how it grows: halfway between not at all and with it.
            known = median(each for each, _ in self._seen)
            middle = median(each for _, each in self._seen)
            return middle * math.sqrt(work / known) if known and work else middle
        # Theil-Sen: the median of all slopes, which two slow looks do not move.
        slope = max(0.0, median(slopes))
        fixed = max(0.0, median(seconds - slope * each for each, seconds in self._seen))
        return fixed + slope * work


def _kind(cost: ViewCost, view: str) -> tuple[str, bool]:
    """One view has two where a part of it counts no work of its own: seconds are no rate then."""
    return view, cost.own_work > 0


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


@cache
def seconds_a_number(device: torch.device) -> float:
    """What a view takes for each number that it writes, on one thread.

    Of some that are unpacked and of shares that are made of them. The least of a few: others who
    compute meanwhile make it no slower.
    """
    packed = torch.zeros(2**20, dtype=torch.float16, device=device)
    took: list[float] = []
    with one_thread():
        for _ in range(5):
            began = perf_counter()
            float(torch.softmax(packed.float(), 0)[0])  # of a GPU too: until it is there
            took.append(perf_counter() - began)
    return min(took) / (2 * len(packed))


def pace_of(runs: Sequence[Run], model: ModelWork, *, is_device: bool = False) -> Rates:
    """At what rates the steps computed that served an answer: some of them, of all sizes.

    is_device: as for fit_rates.
    """
    steps = sorted((run.step for run in runs), key=_num_tokens)
    last = len(steps) - 1
    some = sorted({index * last // (MOST_FITTED - 1) for index in range(MOST_FITTED)})
    return fit_rates((steps[index] for index in some), model, is_device=is_device)


def _num_tokens(step: StepRecord) -> int:
    return sum(part.count for part in step.parts)
