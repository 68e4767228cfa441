"""Keeps a fleet at the size that its load wants, between two bounds. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.core.errors import CutawayError
from cutaway.fleet.crew import Crew
from cutaway.fleet.fleet_size import FleetLoad, FleetSize, load_of
from cutaway.service.service import EngineStats


class SizeWatch:
    """Looks at the engines of this machine, and has one more or one less of them."""

    def __init__(self, crew: Crew, size: FleetSize) -> None:
        self._crew, self._size = crew, size
        self._at = 0.0
        self._numbers: Mapping[str, EngineStats] = {}

    def look(self, now: float, waited: float) -> None:
        """See what engines told last. waited: seconds, of who has waited longest for an engine.

        While one comes or goes nothing is decided: what is seen then is not what will be.
        """
        before, seconds = self._numbers, now - self._at
        ready = [m for m in self._crew.staying if m.state == "ready" and m.numbers is not None]
        told = {m.name: m.numbers for m in ready if m.numbers is not None}
        self._at, self._numbers = now, told
        is_steady = len(told) == len(self._crew.staying) == self._crew.wanted_replicas
        if not is_steady or self._crew.is_changing or told.keys() != before.keys():
            return
        seen = FleetLoad(
            waited=max(waited, _waited_in(told)),
            engines=len(told),
            load=load_of(before.values(), (told[name] for name in before), seconds),
        )
        wanted = self._size.look(now, seen)
        if wanted != len(told):
            self._crew.run(self._scale(wanted))

    async def _scale(self, replicas: int) -> None:
        try:
            await self._crew.scale(replicas)
        except CutawayError as error:
            self._crew.tell(str(error))


def _waited_in(told: Mapping[str, EngineStats]) -> float:
    """Seconds until the engine that begins something soonest has begun all that waits in it."""
    waits = (
        each.waiting_tokens / each.prompt_rate if each.prompt_rate else 0.0
        for each in told.values()
    )
    return min(waits, default=0.0)
