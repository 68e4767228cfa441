"""Which engine answers a request: the one that will, by prediction, begin it soonest.

Predicted seconds = (tokens that wait there + MISS_WEIGHT x tokens it lacks) / its prompt tokens a
second x (1 + its share of places taken). A missing prefix weighs more than its time, since what is
computed twice is lost for all who come later; bench/simulate_fleet.py compares weights. An
engine that was given more than others of late counts as farther by as much, so that prompts which
are asked for often do not come to lie in one.

A state machine without clock, loop or engine: the simulator drives it as the fleet does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cutaway.fleet.prefixes import Prefixes

MISS_WEIGHT: Final = 4.0
STEPS_AHEAD: Final = 2  # an engine gets what it can begin within so many steps; the rest waits here
MOST_LOOKED_AT: Final = 64  # of those who wait, at each look
# Of what engines were given: with each request those before weigh less, so some 256 count.
_GROWTH: Final = 1 + 1 / 256
_MOST_WEIGHT: Final = 1e100
# An engine that was given twice the mean counts as twice as far; a few requests say nothing yet.
BALANCE: Final = 1.0
_FEW: Final = 2.0
# Who has more answers than others too gives away even what its cache is worth, from there on.
_SPILL, _SPILL_FACTOR = 0.15, 100.0
_NOISE: Final = 0.1  # of a prediction, at least: equal ones come by chance, and never in turn


@dataclass(eq=False)
class EngineLoad:
    """What one engine has, as far as it is known here.

    rate: prompt tokens per second.   step_tokens: most prompt tokens of one step.
    bound: answers.   waiting_tokens: of prompts that have not begun, without what is in its cache.
    given:  requests of late, each with its weight.
    is_open: whether it may be given anything.   reserved_for: the only one it may be given.
    """

    name: str
    max_sequences: int
    step_tokens: int
    numeric_class: str = ""
    rate: float = 1.0
    bound: int = 0
    waiting_tokens: int = 0
    given: float = 0.0
    is_open: bool = True
    reserved_for: EngineWanted | None = None
    owners: Counter[str] = field(default_factory=Counter[str])

    @property
    def share(self) -> float:
        """Of its places that are taken."""
        return self.bound / self.max_sequences


@dataclass(eq=False)
class EngineWanted:
    """A request that needs an engine.

    keys: as Prefixes makes them.   classes: numbers that it may go on with; None allows all.
    is_alone: it may have ended engines, so it shares one with nobody.
    """

    owner: str
    num_tokens: int
    num_answers: int = 1
    keys: list[bytes] = field(default_factory=list[bytes])
    classes: frozenset[str] | None = None
    is_alone: bool = False
    has_begun: bool = False

    def fits(self, load: EngineLoad) -> bool:
        """Whether an engine may have it at all."""
        return self.classes is None or load.numeric_class in self.classes


@dataclass(eq=False)
class Binding:
    """An engine for a request. why: cache, idle, shortest or only.

    missing: tokens that it has to compute.   estimated: that it has, by our guess.
    last_use: when somebody last used the end of those.
    """

    wanted: EngineWanted
    load: EngineLoad
    why: str
    missing: int
    estimated: int
    last_use: int = 0
    is_waiting: bool = True


Cost = Callable[
    [EngineLoad, int, int], float
]  # of an engine, tokens that wait there, tokens it lacks


def predicted_seconds(load: EngineLoad, waiting: int, missing: int) -> float:
    """Until it would begin an answer, with a miss weighing more than its time."""
    return (waiting + MISS_WEIGHT * missing) / load.rate * (1 + load.share)


class FleetRouter:
    """Engines, and who is bound to which."""

    def __init__(
        self,
        prefixes: Prefixes,
        *,
        cost: Cost = predicted_seconds,
        chance: random.Random | None = None,
        steps_ahead: float = STEPS_AHEAD,
        balance: float = BALANCE,
    ) -> None:
        self.prefixes = prefixes
        self.loads: dict[str, EngineLoad] = {}
        self.why: Counter[str] = Counter()
        self.estimated_tokens = 0
        self.found_tokens = 0
        self._cost, self._steps_ahead, self._balance = cost, steps_ahead, balance
        self._chance = chance or random.Random()
        self._weight = 1.0  # of a request that is bound now, beside those before

    def join(self, load: EngineLoad) -> None:
        """Have one engine more, which was given as much as others, so that it is not flooded."""
        others = [each.given for each in self.loads.values()]
        load.given = sum(others) / len(others) if others else 0.0
        self.loads[load.name] = load

    def bindings(self, waiting: Iterable[EngineWanted]) -> Iterator[Binding]:
        """Bind whoever can be, in turn. Each is bound when it is yielded.

        Who waits for a busy engine, since its cache is worth it, counts as waiting there.
        """
        ahead: Counter[str] = Counter()
        for wanted in waiting:
            fitting = [e for e in self.loads.values() if self._may_take(e, wanted)]
            if wanted.is_alone:
                load = self._emptied(fitting, wanted)
                if load is not None:
                    yield self._bind(wanted, load, "only", wanted.num_tokens)
                continue
            if not fitting:
                continue
            load, missing, why = self._best(fitting, wanted, ahead)
            if self._has_room(load, wanted, missing):
                yield self._bind(wanted, load, why, missing)
            else:
                ahead[load.name] += missing

    def _may_take(self, load: EngineLoad, wanted: EngineWanted) -> bool:
        return load.is_open and load.reserved_for in (None, wanted) and wanted.fits(load)

    def _best(
        self, fitting: list[EngineLoad], wanted: EngineWanted, ahead: Counter[str]
    ) -> tuple[EngineLoad, int, str]:
        """The engine of least cost, what it lacks, and why it is the one."""
        given = sum(load.given for load in self.loads.values()) / len(self.loads)
        bound = sum(load.bound for load in self.loads.values()) / len(self.loads)
        least, best = float("inf"), (fitting[0], wanted.num_tokens)
        for load in fitting:
            found = self.prefixes.found_tokens(load.name, wanted.keys)
            missing = max(1, wanted.num_tokens - found)
            cost = self._cost(load, load.waiting_tokens + ahead[load.name], missing)
            cost *= self._far(load, given, bound) if self._balance else 1.0
            if cost < least:
                least, best = cost, (load, missing)
        load, missing = best
        if len(fitting) == 1:
            return load, missing, "only"
        if missing < wanted.num_tokens:
            return load, missing, "cache"
        return load, missing, "shortest" if load.bound else "idle"

    def _far(self, load: EngineLoad, given: float, bound: float) -> float:
        """How much farther an engine counts for what it was given, and by chance; beside means."""
        few = _FEW * self._weight
        more = (load.given + few) / (given + few) - 1
        far = 1 + self._balance * max(0.0, more)
        if more > _SPILL and load.bound > bound:
            far += _SPILL_FACTOR * (more - _SPILL)
        return far * self._chance.uniform(1 - _NOISE, 1 + _NOISE)

    def _has_room(self, load: EngineLoad, wanted: EngineWanted, missing: int) -> bool:
        """Whether it can begin soon; who has nothing there goes before those who have."""
        if not load.bound:
            return True
        if not load.owners[wanted.owner]:
            return load.bound < 2 * load.max_sequences
        most = self._steps_ahead * load.step_tokens
        is_soon = not load.waiting_tokens or load.waiting_tokens + missing <= most
        return is_soon and load.bound + wanted.num_answers <= load.max_sequences

    def _emptied(self, fitting: list[EngineLoad], wanted: EngineWanted) -> EngineLoad | None:
        """An engine that has nobody, kept for this one; until there is one, none gets more."""
        if not fitting:
            return None
        load = next((e for e in fitting if e.reserved_for is wanted), None)
        load = load or min(fitting, key=lambda each: each.bound)
        load.reserved_for = wanted
        return None if load.bound else load

    def _bind(self, wanted: EngineWanted, load: EngineLoad, why: str, missing: int) -> Binding:
        estimated = wanted.num_tokens - missing
        last_use = self.prefixes.last_use(load.name, wanted.keys, estimated)
        self.prefixes.note(load.name, wanted.keys)
        load.bound += wanted.num_answers
        load.owners[wanted.owner] += wanted.num_answers
        load.waiting_tokens += missing
        load.given += self._weight
        self._grow()
        self.why[why] += 1
        return Binding(wanted, load, why, missing, estimated, last_use)

    def _grow(self) -> None:
        self._weight *= _GROWTH
        if self._weight > _MOST_WEIGHT:
            for load in self.loads.values():
                load.given /= self._weight
            self._weight = 1.0

    def begin(self, binding: Binding) -> None:
        """The engine has begun to answer; may be said again."""
        if binding.is_waiting:
            binding.is_waiting = False
            binding.load.waiting_tokens -= binding.missing

    def leave(self, binding: Binding) -> None:
        """The engine has it no more."""
        self.begin(binding)
        load, wanted = binding.load, binding.wanted
        load.bound -= wanted.num_answers
        load.owners[wanted.owner] -= wanted.num_answers
        if not load.owners[wanted.owner]:
            del load.owners[wanted.owner]
        if load.reserved_for is wanted:
            load.reserved_for = None

    def give_up(self, wanted: EngineWanted) -> None:
        """Nobody waits for an engine for it any more."""
        for load in self.loads.values():
            if load.reserved_for is wanted:
                load.reserved_for = None

    def learn(self, binding: Binding, cached_tokens: int) -> None:
        """What an answer found in the engine's cache, beside what was thought."""
        self.estimated_tokens += binding.estimated
        self.found_tokens += cached_tokens
        if cached_tokens + self.prefixes.block_tokens < binding.estimated:
            self.prefixes.correct(binding.load.name, binding.last_use)
