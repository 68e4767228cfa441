"""Who pays for a step: its time, shared among its answers by what each is predicted to take.

All shares of a step add up to the step, so all charges add up to the time in which the engine was
busy. Weights are read once for all tokens of a step and shared by them; keys and values are paid
by whose context they are. How long a byte or an operation takes is fitted to the recorded steps.
Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from cutaway.core.work import STAGES, ModelWork, Work
from cutaway.host.turns import breathe
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord, Part, StepRecord

SAMPLING = "sampling"  # with penalties, grammar and text: what follows the forward

Floats = np.ndarray[Any, np.dtype[np.float64]]

# Operations per byte at which a machine is busy with both, until steps tell otherwise: a CPU's.
_BALANCE = 10.0
_MOST_STEPS = 1000  # that a fit looks at, evenly spread
_ROUNDS = 4  # of a fit, each with less weight on steps that were disturbed
_TRUST = 0.01  # weight of the balance against a step


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of each kind of work, in the order of Work.kinds."""

    seconds: tuple[float, float, float, float]

    def predict_seconds(self, work: Work) -> float:
        """Time that the work takes at these rates. Units: seconds."""
        return sum(rate * kind for rate, kind in zip(self.seconds, work.kinds, strict=True))


# Of a plain machine, of which nothing was measured: enough to share a step by.
PLAIN = Rates((1e-10, 1e-10, 1e-10 / _BALANCE, 1e-10 / _BALANCE))


@dataclass(frozen=True)
class StageCost:
    """What one stage took of an answer's time. Units: seconds, bytes, operations."""

    name: str
    seconds: float
    num_bytes: float
    flops: float

    @property
    def intensity(self) -> float:
        """Operations per byte; 0 where nothing is read."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


@dataclass(frozen=True)
class StepCost:
    """An answer's share of one step, by stages and in all."""

    number: int
    stages: tuple[StageCost, ...]

    @property
    def seconds(self) -> float:
        """Its time, all stages."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def num_bytes(self) -> float:
        """Bytes read and written for it, all stages."""
        return sum(stage.num_bytes for stage in self.stages)

    @property
    def flops(self) -> float:
        """Its operations, all stages."""
        return sum(stage.flops for stage in self.stages)


def works_of(step: StepRecord, model: ModelWork) -> list[tuple[Work, ...]]:
    """What each part of a step takes, by STAGES."""
    breathe()
    num_tokens = sum(part.count for part in step.parts)
    all_rows = sum(part.num_rows for part in step.parts)
    return [
        model.part(part.start, part.end, part.num_rows, num_tokens=num_tokens, all_rows=all_rows)
        for part in step.parts
    ]


def work_of(step: StepRecord, model: ModelWork) -> Work:
    """What a step takes, all parts and stages."""
    return sum((work for stages in works_of(step, model) for work in stages), Work())


def fit_rates(
    recorded: Iterable[StepRecord], model: ModelWork, *, is_device: bool = False
) -> Rates:
    """Rates under which recorded steps take the time that they took, as nearly as can be.

    Least squares of relative errors, no rate below zero. What the steps do not tell apart keeps
    the proportion of bytes to operations of a plain machine.
    is_device: a step's forward has no end of its own: the device works on while the host samples.
    """
    steps = list(recorded)
    steps = steps[:: max(1, len(steps) // _MOST_STEPS)]
    scale = np.array([1.0, 1.0, 1 / _BALANCE, 1 / _BALANCE])
    kinds = [work_of(step, model).kinds for step in steps]
    seconds = np.array([(s.ended if is_device else s.computed) - s.began for s in steps])
    known = seconds > 0
    if not known.any():
        return PLAIN
    relative = np.array(kinds)[known] * scale / seconds[known, None]  # [steps, 4]
    speed = 1 / float(np.median(relative.sum(axis=1)))  # seconds per byte of a plain machine
    trust = np.diag(np.sqrt(_TRUST * len(relative)) * relative.mean(axis=0))
    weights = np.ones(len(relative))
    rates = np.full(4, speed)
    for _ in range(_ROUNDS):
        rows = np.concatenate((relative * weights[:, None], trust))
        wanted = np.concatenate((weights, trust @ np.full(4, speed)))
        rates = _least_squares(rows, wanted)
        # A step that somebody else's work held up says little: weight falls with its error.
        weights = 1 / np.sqrt(1 + (np.abs(relative @ rates - 1) / 0.1) ** 2)
    a, b, c, d = (float(each) for each in rates * scale)
    return Rates((a, b, c, d))


def _least_squares(rows: Floats, wanted: Floats) -> Floats:
    """The best solution without a negative entry: of four unknowns every subset is tried."""
    best, least = np.zeros(rows.shape[1]), float("inf")
    columns = range(rows.shape[1])
    for size in columns:
        for left_out in combinations(columns, size):
            kept = [column for column in columns if column not in left_out]
            solution = np.linalg.lstsq(rows[:, kept], wanted, rcond=None)[0]
            error = float(((rows[:, kept] @ solution - wanted) ** 2).sum())
            if (solution >= 0).all() and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[kept] = solution
    return best


def charge(
    ledger: Ledger,
    answer: AnswerRecord,
    model: ModelWork,
    rates: Rates,
    *,
    is_device: bool = False,
) -> list[StepCost]:
    """An answer's share of each of its steps that the ledger still has."""
    steps = [step for n in answer.steps if (step := ledger.step(n)) is not None]
    return [share_of(step, answer, model, rates, is_device=is_device) for step in steps]


def share_of(
    step: StepRecord,
    answer: AnswerRecord,
    model: ModelWork,
    rates: Rates,
    *,
    is_device: bool = False,
) -> StepCost:
    """An answer's share of a step that had a part in it. All shares add up to the step's time."""
    works = works_of(step, model)
    predicted = [[rates.predict_seconds(work) for work in stages] for stages in works]
    at = next(i for i, part in enumerate(step.parts) if part.answer == answer.number)
    end = step.ended if is_device else step.computed
    per_unit = (end - step.began) / sum(map(sum, predicted))
    stages = [
        StageCost(name, per_unit * share, work.num_bytes, work.flops)
        for name, share, work in zip(STAGES, predicted[at], works[at], strict=True)
    ]
    sampling = (step.ended - end) * _row_share(step.parts, at)
    return StepCost(step.number, (*stages, StageCost(SAMPLING, sampling, 0.0, 0.0)))


def _row_share(parts: Sequence[Part], at: int) -> float:
    """Of what follows the forward: by rows of logits, or by parts where there are none."""
    all_rows = sum(part.num_rows for part in parts)
    return parts[at].num_rows / all_rows if all_rows else 1 / len(parts)
