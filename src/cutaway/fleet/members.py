"""One engine of a fleet: what it is, whether it may be given anything, and what it has.

Free of torch, and of what a fleet does with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from cutaway.core.errors import ConfigError, CutawayError
from cutaway.core.output import Delta, DrawProof, ToldChoice
from cutaway.core.request import Request, SamplingParams
from cutaway.fleet.counts import add_counts
from cutaway.fleet.routing import EngineLoad
from cutaway.service.service import EngineStats, EngineTerms, ReplicaStats, Service, State

GOLDEN_SECONDS: Final = 60.0
STATS_SECONDS: Final = 1.5  # an engine in a long step is not waited for
_GOLDEN_TOKENS: Final = 8


class MemberService(Service, Protocol):
    """A service that can go on with what another began."""

    @property
    def terms(self) -> EngineTerms:
        """What the engine can take. Known once the service is ready."""
        ...

    @property
    def num_starts(self) -> int:
        """Of the engine so far: what an earlier one kept is not there any more."""
        ...

    def follow(self, request: Request, told: tuple[ToldChoice, ...] = ()) -> AsyncGenerator[Delta]:
        """News of a request, or of its choices that another engine began.

        Raises: as Service has it; MovedError when move was called.
        """
        ...

    def move(self, request_id: str) -> None:
        """Have who follows a request go on elsewhere."""
        ...


@dataclass(eq=False)
class Member:
    """One engine, by a name that no other has had.

    load: what the router knows of it, once it has joined.   joined: its start that did.
    is_leaving: nothing new for it.   streams: ids of the requests that it has.
    is_linked: it runs elsewhere, and goes on living without this fleet.
    numbers: what it told last; None while it tells none.
    """

    name: str
    service: MemberService
    load: EngineLoad | None = None
    joined: int = 0
    is_leaving: bool = False
    is_linked: bool = False
    streams: set[str] = field(default_factory=set[str])
    numbers: EngineStats | None = None
    refused: str | None = None
    is_empty: asyncio.Event = field(default_factory=asyncio.Event)
    # What its engine counted: at earlier starts, and at the latest that told any.
    _earlier: EngineStats = field(default_factory=EngineStats)
    _latest: tuple[int, EngineStats] | None = None

    @property
    def state(self) -> State:
        """Of the engine; draining where it is about to leave."""
        if self.is_leaving:
            return "draining"
        if self.refused is not None:
            return "failed"
        state = self.service.state
        return "starting" if state == "ready" and not self.has_joined else state

    @property
    def has_joined(self) -> bool:
        """Whether its engine, as it runs now, may be given requests."""
        return self.load is not None and self.joined == self.service.num_starts

    def may_take(self, hang_seconds: float) -> bool:
        """Whether it can be given requests at this moment."""
        return (
            self.state == "ready" and self.has_joined and self.service.silent_seconds < hang_seconds
        )

    def tell(self) -> ReplicaStats:
        """What it is and has, for whoever watches."""
        bound = 0 if self.load is None else self.load.bound
        return ReplicaStats(
            name=self.name,
            state=self.state,
            bound=bound,
            starts=self.service.num_starts,
            numbers=self.numbers,
        )

    async def count(self) -> None:
        """Ask for its numbers; None where it tells none in time."""
        try:
            async with asyncio.timeout(STATS_SECONDS):
                self.numbers = await self.service.stats()
        except (TimeoutError, CutawayError):
            self.numbers = None
            return
        if self._latest is not None and self._latest[0] != self.service.num_starts:
            # The process that counts restarts outlives its engines.
            before = replace(self._latest[1], restarts=0)
            self._earlier = add_counts([self._earlier, before])
        self._latest = (self.service.num_starts, self.numbers)

    @property
    def counted(self) -> EngineStats:
        """What its engine has counted, over all its starts."""
        return add_counts([self._earlier, *(() if self._latest is None else self._latest[1:])])

    async def golden(self) -> tuple[DrawProof, ...]:
        """What it draws the tokens of a known request from: equal where its numbers are.

        Raises: CutawayError where it does not answer.
        """
        prompt = tuple(7 * i % self.service.model.vocab_size for i in range(1, 33))
        params = SamplingParams(temperature=0.0, max_tokens=_GOLDEN_TOKENS, ignore_eos=True, seed=0)
        # Of its own: several fronts may ask one engine at once.
        name = f"golden-{self.name}-{os.urandom(4).hex()}"
        asked = Request(request_id=name, prompt_token_ids=prompt, params=params)
        draws: list[DrawProof] = []
        try:
            async with (
                asyncio.timeout(GOLDEN_SECONDS),
                aclosing(self.service.follow(asked)) as news,
            ):
                async for delta in news:
                    draws += delta.draws
                    if delta.error is not None:
                        raise delta.error
        except TimeoutError:
            raise ConfigError(
                f"replica {self.name} did not answer in {GOLDEN_SECONDS:g} seconds."
            ) from None
        return tuple(draws)
