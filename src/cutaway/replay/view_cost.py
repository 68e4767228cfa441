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

from cutaway.replay.plan import Run
from cutaway.sampling.threads import one_thread

T = TypeVar("T")

LATEST: Final = 5  # looks whose median counts: two slow ones change nothing
LEAST_SECONDS: Final = 0.02  # below, what every look takes besides its steps would count
ALIKE: Final = 1.2  # works that differ by less say nothing of how seconds grow


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
    says that this is; of a view that was not seen yet at the rate at which others came out when
    they were new. What a first look at a view takes besides (code and memory that nobody had used)
    says nothing of the next: it counts only until the second one came, and no more of it than
    second ones left of the first ones elsewhere.

    recording_seconds: that the engine's own recording took; the first look makes one alike.
    """

    def __init__(self, recording_seconds: float = 0.0) -> None:
        # Two looks decide, the one that nobody saw and the first that came: one alone may be slow.
        self._ratios = deque([1.0], maxlen=LATEST)
        self._recordings = deque([recording_seconds], maxlen=LATEST)
        self._firsts: dict[tuple[str, bool], WorkLine] = {}  # of views that were seen once
        self._own: dict[tuple[str, bool], WorkLine] = {}  # of all others, without that one
        self._first_ratios = deque([1.0], maxlen=LATEST)
        self._left = deque([1.0], maxlen=LATEST)  # second looks, as shares of the first ones

    def seconds(self, cost: ViewCost, view: str = "") -> float:
        """How long a look is expected to take."""
        recording = median(self._recordings) if cost.is_fresh else 0.0
        own = self._own_seconds(cost, _kind(cost, view))
        return recording + median(self._ratios) * cost.seconds + own

    def _own_seconds(self, cost: ViewCost, kind: tuple[str, bool]) -> float:
        if kind in self._own:
            return self._own[kind].seconds(cost.own_work)
        if kind in self._firsts:
            return median(self._left) * self._firsts[kind].seconds(cost.own_work)
        return median(self._first_ratios) * cost.own_seconds

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
        if kind not in self._own and kind not in self._firsts:
            self._firsts[kind] = WorkLine(cost.own_work, seconds)
            if cost.own_seconds > 0 and seconds >= LEAST_SECONDS:
                self._first_ratios.append(seconds / cost.own_seconds)
        elif kind in self._own:
            self._own[kind].learn(cost.own_work, seconds)
        else:
            first = self._firsts.pop(kind).seconds(cost.own_work)
            if first >= LEAST_SECONDS:
                self._left.append(min(1.0, seconds / first))
            self._own[kind] = WorkLine(cost.own_work, seconds)


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
    """What a view takes for each number that it goes through, on one thread.

    That of unpacking some and making shares of them. The least of a few: others who compute
    meanwhile make it no slower.
    """
    packed = torch.zeros(2**20, dtype=torch.float16, device=device)
    took: list[float] = []
    with one_thread():
        for _ in range(5):
            began = perf_counter()
            float(torch.softmax(packed.float(), 0)[0])  # of a GPU too: until it is there
            took.append(perf_counter() - began)
    return min(took) / len(packed)


@dataclass(frozen=True)
class StepPace:
    """What a step takes: so long by itself, and so long for each token. Units: seconds."""

    step: float
    token: float

    def seconds(self, runs: Sequence[Run]) -> float:
        """Of some steps."""
        return sum(self.step + self.token * run.num_tokens for run in runs)

    @property
    def rate(self) -> float:
        """Tokens a second of a long step; 0 where none was measured."""
        return 1 / self.token if self.token else 0.0


def pace_of(runs: Sequence[Run]) -> StepPace:
    """The pace of the steps that served an answer, from its shortest and its longest ones.

    Steps of no record are left out; of one size alone all is counted by the token.
    """
    took: dict[int, list[float]] = {}
    for run in runs:
        if run.step.ended > run.step.began:
            took.setdefault(run.num_tokens, []).append(run.step.ended - run.step.began)
    if not took:
        return StepPace(0.0, 0.0)
    few, many = min(took), max(took)
    short, long = median(took[few]), median(took[many])
    token = (long - short) / (many - few) if many > few else 0.0
    if token <= 0.0:
        return StepPace(0.0, long / many)
    return StepPace(max(0.0, short - token * few), token)
