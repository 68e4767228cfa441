"""The engines of a fleet, from their start to their end: who joins, hangs and leaves.

Which requests they get is not known here. Free of torch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace

from cutaway.cache.prefix import root_key
from cutaway.core.errors import ConfigError, CutawayError, EngineClosedError
from cutaway.core.output import DrawProof
from cutaway.fleet.counts import add_counts
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.fleet.members import Member, MemberService
from cutaway.fleet.prefixes import Prefixes
from cutaway.fleet.routing import EngineLoad, FleetRouter
from cutaway.service.service import EngineStats, EngineTerms, ModelCard

START_SECONDS = 10.0  # until another is started in place of one that could not be

# Makes an engine's service, of a name; called with what to call when its state has changed, the
# secret of all keys of pages, and how many engines there are to be.
Make = Callable[[str, Callable[[], None], bytes, int], MemberService]


class Crew:
    """All engines of a fleet, and what the router knows of them.

    make: what starts one.   tell: hears what befalls them; it must not wait for anybody.
    hang_seconds: without a sign of work of an engine, after which its answers go on elsewhere.
    drain_seconds: that an engine which leaves has for what it answers.
    look: called when who may be given what has changed.
    secret: of keys of pages, where engines elsewhere have it already; None draws one.
    """

    def __init__(
        self,
        make: Make,
        config: FleetConfig,
        *,
        hang_seconds: float,
        drain_seconds: float,
        tell: Callable[[str], None],
        look: Callable[[], None],
        secret: bytes | None = None,
    ) -> None:
        self._make, self.config, self.tell, self._call_look = make, config, tell, look
        self.hang_seconds, self._drain_seconds = hang_seconds, drain_seconds
        self._secret = os.urandom(16) if secret is None else secret
        self._members: dict[str, Member] = {}
        self._num_made = 0
        self.wanted_replicas = config.replicas
        self._linked = dict.fromkeys(config.members)  # addresses that are to be members
        self._told: dict[str, str] = {}  # why each was given up last
        self._golden: dict[str, tuple[DrawProof, ...]] = {}  # by numeric class
        # All three are known once the first engine has joined.
        self.card: ModelCard | None = None
        self.terms: EngineTerms | None = None
        self.router: FleetRouter | None = None
        self._lora: dict[str, str] | None = None  # names and folders, once they were changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._changing = asyncio.Lock()  # one change of the number or the version at a time
        self.last_error: CutawayError | None = None
        self.gone = EngineStats()  # what those had counted that have left

    @property
    def members(self) -> Mapping[str, Member]:
        """All engines by name, in the order in which they were started."""
        return self._members

    @property
    def num_ready(self) -> int:
        """Engines that are given requests."""
        return sum(member.state == "ready" for member in self._members.values())

    def start(self) -> None:
        """Start all engines; returns at once."""
        for _ in range(self.config.replicas):
            self._add()
        for address in self._linked:
            self._add(address)

    @property
    def is_changing(self) -> bool:
        """Whether the number or the version of engines is being changed."""
        return self._changing.locked()

    @property
    def is_given_up(self) -> bool:
        """Whether no engine is left, and none is tried again."""
        return not self._members and not (self._linked and self.card is not None)

    def link(self, address: str) -> None:
        """Have an engine that runs elsewhere as a member, from now on."""
        if address not in self._linked:
            self._linked[address] = None
            self._add(address)

    def relink(self, addresses: Sequence[str]) -> None:
        """Have these engines that run elsewhere as members, and no others."""
        for address in self._linked.keys() - set(addresses):
            self.run(self.unlink(address))
        for address in addresses:
            self.link(address)

    async def unlink(self, address: str) -> None:
        """Let an engine that runs elsewhere go; its answers end there, or go on in others."""
        self._linked.pop(address, None)
        member = self._members.get(address)
        if member is not None and not member.is_leaving:
            await self._retire(member)

    async def wait(self) -> None:
        """Until anything has changed after this call. Raises: EngineClosedError once closed."""
        self._changed.clear()
        if not self._is_closed:
            await self._changed.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosedError("the engines were closed.")

    def look(self) -> None:
        """Engines have changed: wake who waits for that."""
        self._changed.set()
        self._call_look()

    async def close(self) -> None:
        """End all engines, for good: who waits for one hears so, and none is started any more."""
        self._is_closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.service.close() for member in self._members.values()))

    async def scale(self, replicas: int) -> None:
        """Have so many engines. Answers of those that leave end there, or go on in others.

        Raises: ConfigError for a number that is not allowed.
        """
        FleetConfig(replicas=replicas)
        async with self._changing:
            self.wanted_replicas = replicas
            self.tell(f"replicas: {replicas}.")
            staying = self.staying
            for _ in range(len(staying), replicas):
                self._add()
            leaving = sorted(staying, key=lambda m: (m.state == "ready", len(m.streams)))
            leaving = leaving[: max(0, len(staying) - replicas)]
            await asyncio.gather(*map(self._retire, leaving))

    async def roll(self) -> None:
        """Start each engine anew, one after another: a new one first, then an old one leaves.

        A new one that gives no or other numbers than it should is refused, and the old ones stay.
        """
        async with self._changing:
            for old in self.staying:
                new = self._add()
                while new.state != "ready":
                    if new.name not in self._members or new.refused is not None:
                        self.tell(f"replica {new.name} does not join; the others stay as they are.")
                        return
                    await self.wait()
                await self._retire(old)
            self.tell("all replicas were started anew.")

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter in every engine, or unload it; who joins later takes up the same.

        Raises: as an engine; then none has changed.
        """
        async with self._changing:
            done: list[Member] = []
            ready = [each for each in self._members.values() if each.has_joined]
            if not ready:
                raise EngineClosedError("no engine is ready. Try again in a few seconds.")
            before = {each.name: each.path for each in ready[0].service.model.adapters}
            try:
                for member in ready:
                    await member.service.adapt(name, path)
                    done.append(member)
            except CutawayError:
                for member in done:
                    await member.service.adapt(name, None if path is not None else before[name])
                raise
            adapters = ready[0].service.model.adapters
            self.card = replace(
                ready[0].service.model if self.card is None else self.card, adapters=adapters
            )
            self._lora = {each.name: each.path for each in adapters}

    async def _adapt(self, member: Member) -> None:
        """Give an engine that joins the adapters that the others have."""
        if self._lora is None:
            return
        loaded = {each.name: each.path for each in member.service.model.adapters}
        for name in loaded.keys() - self._lora.keys():
            await member.service.adapt(name, None)
        for name in self._lora.keys() - loaded.keys():
            await member.service.adapt(name, self._lora[name])

    @property
    def staying(self) -> list[Member]:
        """Engines of this machine that do not leave: how many there are is said here."""
        return [m for m in self._members.values() if not (m.is_leaving or m.is_linked)]

    def _add(self, address: str | None = None) -> Member:
        """Start an engine here, or link one that runs elsewhere. Raises: EngineClosedError."""
        self._check_open()
        name = str(self._num_made) if address is None else address
        self._num_made += address is None
        sharing = max(self.wanted_replicas, self.config.most_replicas or 1)
        service = self._make(name, lambda: self._on_change(name), self._secret, sharing)
        member = self._members[name] = Member(name, service, is_linked=address is not None)
        self.run(self._launch(member))
        return member

    async def _launch(self, member: Member) -> None:
        """Start an engine, and watch until it is given up."""
        why: str
        try:
            await member.service.start()
            why = await member.service.wait_until_gone()
            self.last_error = EngineClosedError(why)
        except (CutawayError, OSError) as error:
            why = str(error)
            self.last_error = error if isinstance(error, CutawayError) else ConfigError(why)
        if self._told.get(member.name) != why:
            self._told[member.name] = why
            self.tell(f"replica {member.name} is given up: {why}")
        self._forget(member)
        await member.service.close()
        if not member.joined and self.card is not None:
            await asyncio.sleep(START_SECONDS)
            if member.is_linked:
                if member.name in self._linked and member.name not in self._members:
                    self._add(member.name)
            elif len(self.staying) < self.wanted_replicas:
                self._add()

    def _on_change(self, name: str) -> None:
        """Called in the event loop when an engine's state has changed."""
        member = self._members.get(name)
        if member is not None and member.service.state == "ready" and not member.has_joined:
            self.run(self._join(member))
        self.look()

    async def _join(self, member: Member) -> None:
        """Let an engine answer once it has given the numbers that it should."""
        start, terms = member.service.num_starts, member.service.terms
        try:
            await self._adapt(member)
            draws = await member.golden()
        except CutawayError as error:
            if member.service.num_starts == start and member.service.state == "ready":
                self._refuse(member, f"its first answer failed: {error}")
            return
        if member.service.num_starts != start or member.name not in self._members:
            return
        if terms.page_keys != root_key("page keys", self._secret):
            self._refuse(member, "its keys of pages are of another secret")
        elif self._golden.setdefault(terms.numeric_class, draws) != draws:
            self._refuse(
                member, "a known request gave other numbers than engines of its class give"
            )
        elif self.card is not None and self.card.vocab_size != member.service.model.vocab_size:
            self._refuse(member, "its model has another vocabulary")
        elif (other := self._other_weights(member)) is not None:
            self._refuse(member, f"its weights are not those of replica {other}")
        else:
            self._admit(member, start)

    def _other_weights(self, member: Member) -> str | None:
        """A member that has other weights in the same form, where one of the two is elsewhere.

        Here they may differ for a while: a roll takes up a file that has changed.
        """
        own, card = member.service.terms, member.service.model
        for other in self._members.values():
            if other is member or not other.joined or not (member.is_linked or other.is_linked):
                continue
            theirs = other.service.terms
            is_other = theirs.form == own.form and theirs.weights != own.weights
            if is_other or other.service.model.num_parameters != card.num_parameters:
                return other.name
        return None

    def _admit(self, member: Member, start: int) -> None:
        terms, card = member.service.terms, member.service.model
        if self.router is None:
            self.terms = terms
            self.router = FleetRouter(Prefixes(self._secret, page_size=terms.page_size))
        length = card.max_length
        self.card = replace(
            card, max_length=length if self.card is None else min(length, self.card.max_length)
        )
        self.router.prefixes.join(member.name, terms.cache_tokens)
        if member.load is None:
            member.load = EngineLoad(member.name, terms.max_sequences, terms.prompt_tokens)
            member.load.rate = _rate_of(self._members.values())
            self.router.join(member.load)
        member.load.numeric_class = terms.numeric_class
        member.joined = start
        self.look()

    def _refuse(self, member: Member, why: str) -> None:
        member.refused = why
        self.tell(f"replica {member.name} is refused: {why}.")
        self.look()

    async def _retire(self, member: Member) -> None:
        """Give an engine nothing new, wait for what it has, move the rest, and end it."""
        member.is_leaving = True
        self.look()
        try:
            async with asyncio.timeout(self._drain_seconds):
                await self._emptied(member)
        except TimeoutError:
            while member.streams:
                if self.may_move(member):
                    self.move_all(member)
                await self.wait()
        await member.count()  # for the last time
        self._forget(member)
        await member.service.close()

    async def _emptied(self, member: Member) -> None:
        while member.streams:
            member.is_empty.clear()
            await member.is_empty.wait()

    def may_move(self, member: Member) -> bool:
        """Whether another engine could go on with what this one has."""
        if self.config.resume == "off":
            return False
        others = (m for m in self._members.values() if m is not member and m.load is not None)
        return any(
            other.load is not None
            and other.may_take(self.hang_seconds)
            and (
                member.load is None
                or other.load.numeric_class == member.load.numeric_class
                or self.config.resume == "any"
            )
            for other in others
        )

    def move_all(self, member: Member) -> None:
        """Have all answers of an engine go on elsewhere."""
        for request_id in tuple(member.streams):
            member.service.move(request_id)

    def _forget(self, member: Member) -> None:
        if self._members.pop(member.name, None) is not None:
            self.gone = add_counts([self.gone, member.counted])
        if self.router is not None:
            self.router.loads.pop(member.name, None)
            self.router.prefixes.leave(member.name)
        self.look()

    def move_from_hung(self) -> None:
        """Have answers of engines that show no sign of work go on elsewhere."""
        for member in tuple(self._members.values()):
            is_hung = member.service.silent_seconds >= self.hang_seconds
            if member.streams and is_hung and self.may_move(member):
                self.move_all(member)

    async def count(self) -> None:
        """Ask all engines that may be given anything for their numbers, and learn their rates."""
        ready = [m for m in self._members.values() if m.may_take(self.hang_seconds)]
        await asyncio.gather(*(member.count() for member in ready))
        # Those of one machine are alike, and what they measure says who was busy beside them.
        here = [member for member in ready if not member.is_linked]
        for member in ready:
            if member.load is not None:
                alike = [member] if member.is_linked else here
                member.load.rate = _rate_of(alike, default=member.load.rate)

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside all else, until the fleet is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _rate_of(members: Iterable[Member], default: float = 1.0) -> float:
    """Prompt tokens per second of some engines, the mean of those that know."""
    rates = [m.numbers.prompt_rate for m in members if m.numbers and m.numbers.prompt_rate]
    return sum(rates) / len(rates) if rates else default
