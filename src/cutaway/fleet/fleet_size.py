"""How many engines a load wants, from what engines themselves tell: no request is counted here.

What is counted where it comes and goes leaks with each one that is lost, and then holds engines for
ever. So this reads, at each look, how long somebody has waited, and what ready engines say that
they have. A state machine without clock, loop or engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cutaway.service.service import EngineStats

# Longer than two steps of most engines take; who is to wait less starts more engines beforehand.
WAIT_SECONDS: Final = 1.0
WAITED_LOOKS: Final = 2  # in a row: one long prompt holds up others once
IDLE_SECONDS: Final = 600.0  # to load a large model again takes minutes
SHARE: Final = 0.7  # of what engines can take that a load may fill where one of them leaves
# With so much of a load under which fewer engines were too few, they are not tried again.
_TRIED: Final = 0.8


@dataclass(frozen=True)
class FleetLoad:
    """What is seen at one look.

    waited: seconds, of who has waited longest for an engine or in one.
    engines: that are ready.   load: what they have, in engines: 1.5 fills one and a half.
    """

    waited: float
    engines: int
    load: float


def load_of(before: Iterable[EngineStats], now: Iterable[EngineStats], seconds: float) -> float:
    """What engines have, in engines: each by what it has least left of.

    That is places for answers, pages, or time to compute prompts.
    before, now: the numbers of each at two looks, so many seconds apart.
    """
    return sum(_load_of(*pair, seconds) for pair in zip(before, now, strict=True))


def _load_of(before: EngineStats, now: EngineStats, seconds: float) -> float:
    places = now.running / now.max_sequences if now.max_sequences else 0.0
    pages = now.pages_used / now.pages_total if now.pages_total else 0.0
    computed = (now.query_tokens - now.hit_tokens) - (before.query_tokens - before.hit_tokens)
    rate = now.prompt_rate * seconds
    return max(places, pages, computed / rate if rate > 0 else 0.0)


class FleetSize:
    """How many engines there should be, from `least` to `most`."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._num_waited = 0
        self._idle_since: float | None = None
        self._too_much: dict[int, float] = {}  # loads under which so many engines were too few

    def look(self, now: float, seen: FleetLoad) -> int:
        """How many engines there should be from now on. now: seconds, by any clock that grows."""
        engines = seen.engines
        self._num_waited = self._num_waited + 1 if seen.waited > WAIT_SECONDS else 0
        if self._num_waited >= WAITED_LOOKS and engines < self._most:
            self._num_waited, self._idle_since = 0, None
            self._too_much[engines] = seen.load
            return engines + 1
        if self._num_waited or engines <= self._least or not self._fits(engines - 1, seen.load):
            self._idle_since = None
            return engines
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < IDLE_SECONDS:
            return engines
        self._idle_since = None  # one at a time
        return engines - 1

    def _fits(self, engines: int, load: float) -> bool:
        tried = self._too_much.get(engines, math.inf)
        return load <= SHARE * engines and load <= _TRIED * tried
