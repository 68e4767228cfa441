"""Many engines as one service: start reading at follow().

A request waits here for its owner's turn and for an engine that can begin it soon. When the engine
ends, the request goes on in another where it stood. Free of torch.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import replace

from cutaway.cache.prefix import root_key
from cutaway.core.errors import (
    ConfigError,
    CutawayError,
    EngineClosedError,
    MovedError,
    OverloadedError,
)
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta, DrawProof
from cutaway.core.request import Request
from cutaway.engine.admission.request_checks import check_request
from cutaway.fleet import report
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.fleet.members import Member, MemberService
from cutaway.fleet.owner_turns import Turns
from cutaway.fleet.prefixes import Prefixes
from cutaway.fleet.resume import Stream, late
from cutaway.fleet.routing import MOST_LOOKED_AT, Binding, EngineLoad, EngineWanted, FleetRouter
from cutaway.fleet.whereabouts import Whereabouts
from cutaway.service.bounds import ProcessConfig, TrafficConfig
from cutaway.service.service import EngineStats, ModelCard, State
from cutaway.service.traffic import Traffic

WATCH_SECONDS = 0.5  # between two looks at all engines
START_SECONDS = 10.0  # until another is started in place of one that could not be

# Makes an engine's service, of a name; called with what to call when its state has changed, the
# secret of all keys of pages, and how many engines there are to be.
Make = Callable[[str, Callable[[], None], bytes, int], MemberService]


class Fleet:
    """A Service over many engines.

    make: what starts one.   tell: hears what befalls them; it must not wait for anybody.
    hang_seconds: without a sign of work of an engine, after which its answers go on elsewhere.
    """

    def __init__(
        self,
        make: Make,
        config: FleetConfig,
        *,
        traffic: TrafficConfig | None = None,
        hang_seconds: float = ProcessConfig.hang_seconds,
        drain_seconds: float = 30,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._make, self._config, self._tell = make, config, tell
        self._traffic_config = traffic or TrafficConfig()
        self._hang_seconds, self._drain_seconds = hang_seconds, drain_seconds
        self._secret = os.urandom(16)
        self._members: dict[str, Member] = {}
        self._num_made = 0
        self._wanted_replicas = config.replicas
        self._golden: dict[str, tuple[DrawProof, ...]] = {}  # by numeric class
        self._card: ModelCard | None = None
        self._lora: dict[str, str] | None = None  # names and folders, once they were changed
        self._router: FleetRouter | None = None
        self._traffic: Traffic | None = None
        self._turns: Turns[EngineWanted] = Turns()
        self._waiting: dict[EngineWanted, asyncio.Future[Binding]] = {}
        self._streams: dict[str, tuple[Stream, Member | None]] = {}
        self._whereabouts = Whereabouts()
        self._resumed: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._changing = asyncio.Lock()  # one change of the number or the version at a time
        self._has_begun = False  # to take requests in
        self._is_draining = False
        self._is_looking = False
        self._last_error: CutawayError | None = None

    # What a Service is.

    @property
    def model(self) -> ModelCard:
        """Known once the service is ready."""
        assert self._card is not None, "a model is known once the service is ready"
        return self._card

    @property
    def state(self) -> State:
        """Ready while enough engines are."""
        if self._is_draining:
            return "draining"
        # Once it has begun, an answer by what is left is better than none.
        if self.num_ready >= (1 if self._has_begun else self._config.least_ready):
            self._has_begun = True
            return "ready"
        states = {member.state for member in self._members.values()}
        return "starting" if self._card is None or "starting" in states else "failed"

    @property
    def num_ready(self) -> int:
        """Engines that are given requests."""
        return sum(member.state == "ready" for member in self._members.values())

    @property
    def wanted_replicas(self) -> int:
        """Engines that there are, or soon will be."""
        return self._wanted_replicas

    @property
    def members(self) -> tuple[Member, ...]:
        """All engines, in the order in which they were started."""
        return tuple(self._members.values())

    @property
    def silent_seconds(self) -> float:
        """Of the engine that moved last: one that works is enough."""
        ready = [m.service.silent_seconds for m in self._members.values() if m.state == "ready"]
        return min(ready, default=0.0)

    async def start(self) -> None:
        """Start all engines; returns when the least number is ready.

        Raises: what keeps the model from being loaded, where no engine could.
        """
        for _ in range(self._config.replicas):
            self._add()
        self._run(self._watch())
        while self.state != "ready":
            if self._last_error is not None and not self._members:
                raise self._last_error
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_gone(self) -> str:
        """Why the fleet is given up: all engines are; else it never returns."""
        while self._card is None or self._members or self._is_draining:
            self._changed.clear()
            await self._changed.wait()
        return f"all engines are given up; the last one: {self._last_error}"

    async def follow(self, request: Request) -> AsyncGenerator[Delta]:
        """News of one request until it is done. Leaving the loop ends it.

        Raises: RequestError, OverloadedError, DeadlineError; EngineClosedError where it cannot go
        on in any engine.
        """
        if self._traffic is None:
            raise EngineClosedError("the fleet has not started. Try again in a few seconds.")
        check_request(request, self.model.vocab_size, self.model.max_length)
        assert request.request_id not in self._streams, "a request's id is its own while it runs"
        with self._traffic.enter(request) as place:
            stream = Stream(request, self._config.resume, time.monotonic)
            self._streams[request.request_id] = (stream, None)
            try:
                while not stream.is_done:
                    for last in stream.cut():
                        yield last
                    if stream.is_done:
                        return
                    async with aclosing(self._in_one_engine(stream)) as deltas:
                        async for delta in deltas:
                            place.begin()
                            yield delta
            finally:
                del self._streams[request.request_id]

    async def end(self, request_id: str, choice: int) -> None:
        """End one choice that has said something: its last news follows, as of an abort."""
        stream, member = self._streams.get(request_id, (None, None))
        if stream is not None and stream.drop_choice(choice) and member is not None:
            await member.service.end(request_id, choice)

    async def stats(self) -> EngineStats:
        """What all engines hold together, and each alone."""
        await asyncio.gather(*(m.count() for m in self._members.values() if m.state == "ready"))
        return report.stats_of(self.members, self._router, len(self._turns), self._resumed)

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter in every engine, or unload it; who joins later takes up the same.

        Raises: as an engine; then none has changed.
        """
        async with self._changing:
            done: list[Member] = []
            ready = [each for each in self._members.values() if each.has_joined]
            if not ready:
                raise EngineClosedError("no engine is ready. Try again in a few seconds.")
            try:
                for member in ready:
                    await member.service.adapt(name, path)
                    done.append(member)
            except CutawayError:
                for member in done if path is not None else ():
                    await member.service.adapt(name, None)
                raise
            adapters = ready[0].service.model.adapters
            self._card = replace(self.model, adapters=adapters)
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

    async def view(self, asked: ViewRequest) -> bytes:
        """What a view of an answer gives, by the engine that has its record."""
        return await self._keeper_of(asked.request_id, asked.choice).view(asked)

    async def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer, by the engine that has its record."""
        keeper = self._keeper_of(listened.request_id, listened.choice)
        async with aclosing(keeper.listen(listened)) as batches:
            async for batch in batches:
                yield batch

    async def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, by the engine that has the answer's record."""
        keeper = self._keeper_of(tried.request_id, tried.choice)
        async with aclosing(keeper.compare(tried)) as batches:
            async for batch in batches:
                yield batch

    async def snapshot(self, owner: str) -> bytes:
        """What each engine holds now, as docs/events.md has it. Raises: EngineClosedError."""
        return await report.snapshot_of(self.members, owner, len(self._turns), self._resumed)

    def refusal(self, owner: str, num_coming: int = 0) -> OverloadedError | None:
        """Why an owner gets no further answer now, before anything of its request is parsed."""
        traffic = self._traffic
        return None if traffic is None else traffic.refusal(owner, num_coming=num_coming)

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        self._is_draining = True
        if self._traffic is not None:
            await self._traffic.drain(seconds)

    async def close(self) -> None:
        """End all engines; what still runs is told."""
        self._is_draining = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closed = EngineClosedError("the engines were closed while this answer waited.")
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(closed)
        await asyncio.gather(*(member.service.close() for member in self._members.values()))

    # What befalls engines, and what is asked of the fleet itself.

    async def scale(self, replicas: int) -> None:
        """Have so many engines. Answers of those that leave end there, or go on in others.

        Raises: ConfigError for a number that is not allowed.
        """
        FleetConfig(replicas=replicas)
        async with self._changing:
            self._wanted_replicas = replicas
            self._tell(f"replicas: {replicas}.")
            staying = [m for m in self._members.values() if not m.is_leaving]
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
            for old in [m for m in self._members.values() if not m.is_leaving]:
                new = self._add()
                while new.state != "ready":
                    if new.name not in self._members or new.refused is not None:
                        self._tell(
                            f"replica {new.name} does not join; the others stay as they are."
                        )
                        return
                    self._changed.clear()
                    await self._changed.wait()
                await self._retire(old)
            self._tell("all replicas were started anew.")

    def _add(self) -> Member:
        name = str(self._num_made)
        self._num_made += 1
        sharing = max(self._wanted_replicas, 1)
        service = self._make(name, lambda: self._on_change(name), self._secret, sharing)
        member = self._members[name] = Member(name, service)
        self._run(self._launch(member))
        return member

    async def _launch(self, member: Member) -> None:
        """Start an engine, and watch until it is given up."""
        why: str
        try:
            await member.service.start()
            why = await member.service.wait_until_gone()
            self._last_error = EngineClosedError(why)
        except (CutawayError, OSError) as error:
            why = str(error)
            self._last_error = error if isinstance(error, CutawayError) else ConfigError(why)
        self._tell(f"replica {member.name} is given up: {why}")
        self._forget(member)
        await member.service.close()
        if not member.joined and self._card is not None:
            await asyncio.sleep(START_SECONDS)
            if len([m for m in self._members.values() if not m.is_leaving]) < self._wanted_replicas:
                self._add()

    def _on_change(self, name: str) -> None:
        """Called in the event loop when an engine's state has changed."""
        member = self._members.get(name)
        if member is not None and member.service.state == "ready" and not member.has_joined:
            self._run(self._join(member))
        self._look()

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
        elif self._card is not None and self._card.vocab_size != member.service.model.vocab_size:
            self._refuse(member, "its model has another vocabulary")
        else:
            self._admit(member, start)

    def _admit(self, member: Member, start: int) -> None:
        terms, card = member.service.terms, member.service.model
        if self._router is None or self._traffic is None:
            self._router = FleetRouter(Prefixes(self._secret, page_size=terms.page_size))
            self._traffic = Traffic(
                self._traffic_config,
                max_sequences=self._config.replicas * terms.max_sequences,
                cache_tokens=self._config.replicas * terms.cache_tokens,
            )
        length = card.max_length
        self._card = replace(
            card, max_length=length if self._card is None else min(length, self._card.max_length)
        )
        self._router.prefixes.join(member.name, terms.cache_tokens)
        if member.load is None:
            member.load = EngineLoad(member.name, terms.max_sequences, terms.prompt_tokens)
            member.load.rate = _rate_of(self._members.values())
            self._router.loads[member.name] = member.load
        member.load.numeric_class = terms.numeric_class
        member.joined = start
        self._look()

    def _refuse(self, member: Member, why: str) -> None:
        member.refused = why
        self._tell(f"replica {member.name} is refused: {why}.")
        self._look()

    async def _retire(self, member: Member) -> None:
        """Give an engine nothing new, wait for what it has, move the rest, and end it."""
        member.is_leaving = True
        self._look()
        try:
            async with asyncio.timeout(self._drain_seconds):
                await self._emptied(member)
        except TimeoutError:
            while member.streams:
                if self._may_move(member):
                    self._move_all(member)
                self._changed.clear()
                await self._changed.wait()
        self._forget(member)
        await member.service.close()

    async def _emptied(self, member: Member) -> None:
        while member.streams:
            member.is_empty.clear()
            await member.is_empty.wait()

    def _may_move(self, member: Member) -> bool:
        """Whether another engine could go on with what this one has."""
        if self._config.resume == "off":
            return False
        others = (m for m in self._members.values() if m is not member and m.load is not None)
        return any(
            other.load is not None
            and other.load.is_open
            and (
                member.load is None
                or other.load.numeric_class == member.load.numeric_class
                or self._config.resume == "any"
            )
            for other in others
        )

    def _move_all(self, member: Member) -> None:
        for request_id in tuple(member.streams):
            member.service.move(request_id)

    def _forget(self, member: Member) -> None:
        self._members.pop(member.name, None)
        if self._router is not None:
            self._router.loads.pop(member.name, None)
            self._router.prefixes.leave(member.name)
        self._look()

    async def _watch(self) -> None:
        """Look at all engines again and again: which hang, and how fast each is."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for member in tuple(self._members.values()):
                is_hung = member.service.silent_seconds >= self._hang_seconds
                is_kept_free = member.load is not None and member.load.reserved_for is not None
                if member.streams and self._may_move(member) and is_hung:
                    self._move_all(member)
                elif is_kept_free and member.load is not None and len(member.streams) > 0:
                    self._make_room(member)
            self._look()
            ready = [m for m in self._members.values() if m.may_take(self._hang_seconds)]
            await asyncio.gather(*(member.count() for member in ready))
            for member in ready:
                if member.load is not None:
                    member.load.rate = _rate_of([member], default=member.load.rate)

    def _make_room(self, member: Member) -> None:
        """Somebody is to have this engine alone: who else has it goes on elsewhere."""
        assert member.load is not None, "who is kept free has joined"
        if member.load.reserved_for in self._waiting and self._may_move(member):
            self._move_all(member)

    # Who gets which engine.

    async def _in_one_engine(self, stream: Stream) -> AsyncGenerator[Delta]:
        """News of a request while one engine has it; returns when that one has it no more."""
        request_id = stream.request.request_id
        binding = await self._bound(stream)
        assert self._router is not None, "who is bound has a router"
        member = self._members[binding.load.name]
        has_ended = False
        try:
            stream.bind(binding.load.numeric_class)
            asked, before = stream.for_engine(), stream.list_begun()
            self._note_bound(stream, member)
            if not member.may_take(self._hang_seconds):
                raise MovedError("it has ended since it was chosen")
            async with aclosing(member.service.follow(asked, before)) as deltas:
                async for delta in deltas:
                    if binding.is_waiting:
                        self._router.begin(binding)
                        self._look()
                    if delta.seam is not None:
                        self._resumed["true" if delta.seam else "false"] += 1
                    if delta.usage is not None and delta.choice == 0 and not before:
                        self._router.learn(binding, delta.usage.cached_tokens)
                    told_on, ended = stream.take(delta)
                    if ended is not None:
                        await member.service.end(request_id, ended)
                    if told_on is not None:
                        yield told_on
            return
        except EngineClosedError:
            has_ended = True
            binding.load.is_open = False  # until it is looked at again
        except MovedError:
            pass
        finally:
            self._note_left(stream, member, binding)
        stream.unbind(has_ended=has_ended)

    def _note_bound(self, stream: Stream, member: Member) -> None:
        request_id, params = stream.request.request_id, stream.request.params
        member.streams.add(request_id)
        self._streams[request_id] = (stream, member)
        going_on = [choice.choice for choice in stream.list_begun()] or list(range(params.n))
        self._whereabouts.note(request_id, member.name, going_on, num_choices=params.n)

    def _note_left(self, stream: Stream, member: Member, binding: Binding) -> None:
        assert self._router is not None, "who was bound had a router"
        request_id = stream.request.request_id
        member.streams.discard(request_id)
        if not member.streams:
            member.is_empty.set()
        if request_id in self._streams:
            self._streams[request_id] = (stream, None)
        self._router.leave(binding)
        self._turns.release(binding.wanted)
        if self._router.loads.get(member.name) is binding.load and stream.is_done:
            salt = stream.request.cache_salt
            keys = self._router.prefixes.keys(stream.longest, salt)
            self._router.prefixes.note(member.name, keys)
        self._look()

    async def _bound(self, stream: Stream) -> Binding:
        """Wait for the request's turn and an engine for it. Raises: as follow."""
        assert self._router is not None, "the router is made with the first engine"
        token_ids = stream.longest
        wanted = EngineWanted(
            owner=stream.request.sharer,
            num_tokens=len(token_ids),
            num_answers=stream.num_open,
            keys=self._router.prefixes.keys(token_ids, stream.request.cache_salt),
            classes=self._classes_for(stream),
            is_alone=stream.is_suspect,
            has_begun=stream.num_moves > 0,
        )
        future: asyncio.Future[Binding] = asyncio.get_running_loop().create_future()
        self._waiting[wanted] = future
        self._turns.add(wanted)
        self._bind_all()
        try:
            async with asyncio.timeout(stream.seconds_left):
                return await future
        except TimeoutError:
            raise late(stream.request) from None
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._router.leave(future.result())  # its engine came as its reader went
                self._turns.release(wanted)
            raise
        finally:
            self._waiting.pop(wanted, None)
            self._turns.remove(wanted)
            self._router.give_up(wanted)

    def _classes_for(self, stream: Stream) -> frozenset[str] | None:
        """Numbers with which a request may go on. Raises: EngineClosedError where none are left."""
        own = stream.numeric_class
        if not stream.has_begun or own is None or self._config.resume == "any":
            return None
        left = {m.load.numeric_class for m in self._members.values() if m.load is not None}
        if own not in left:
            raise EngineClosedError(
                "the engine ended while this answer ran, and no other gives its numbers. With "
                "resume any it would go on all the same. Try again."
            )
        return frozenset({own})

    def _keeper_of(self, request_id: str, choice: int) -> MemberService:
        """The engine that has an answer's record; any, to say so, where none is known to.

        Raises: EngineClosedError where there is none at all.
        """
        name = self._whereabouts.find(request_id, choice)
        keeper = None if name is None else self._members.get(name)
        keeper = keeper or next((m for m in self._members.values() if m.has_joined), None)
        if keeper is None:
            raise EngineClosedError("no engine is ready. Try again in a few seconds.")
        return keeper.service

    def _look(self) -> None:
        """Engines or those who wait have changed: see soon who can be bound now."""
        self._changed.set()
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._bind_all)

    def _bind_all(self) -> None:
        self._is_looking = False
        router = self._router
        if router is None:
            return
        for member in self._members.values():
            if member.load is not None:
                member.load.is_open = member.may_take(self._hang_seconds)
        for binding in router.bindings(self._turns.in_order(MOST_LOOKED_AT)):
            self._turns.bind(binding.wanted)
            future = self._waiting.get(binding.wanted)
            if future is None or future.done():
                router.leave(binding)
                self._turns.release(binding.wanted)
                continue
            future.set_result(binding)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _rate_of(members: Iterable[Member], default: float = 1.0) -> float:
    """Prompt tokens per second of some engines, the mean of those that know."""
    rates = [m.numbers.prompt_rate for m in members if m.numbers and m.numbers.prompt_rate]
    return sum(rates) / len(rates) if rates else default
