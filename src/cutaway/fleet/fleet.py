"""Many engines as one service: start reading at follow().

A request waits here for its owner's turn and for an engine that can begin it soon. When the engine
ends, the request goes on in another where it stood. Free of torch.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from cutaway.core.errors import EngineClosedError, MovedError, OverloadedError
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.engine.admission.request_checks import check_request
from cutaway.fleet import report
from cutaway.fleet.crew import Crew, Make
from cutaway.fleet.engine_queue import EngineQueue
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.fleet.fleet_size import FleetSize
from cutaway.fleet.kept_answers import KeptAnswers
from cutaway.fleet.members import Member, MemberService
from cutaway.fleet.resume import Route, Stream
from cutaway.fleet.routing import Binding
from cutaway.fleet.size_watch import SizeWatch
from cutaway.fleet.whereabouts import Keeper, Whereabouts
from cutaway.host.link_key import LinkAddress
from cutaway.service.bounds import ProcessConfig, TrafficConfig
from cutaway.service.service import EngineStats, ModelCard, State
from cutaway.service.traffic import Traffic

WATCH_SECONDS = 0.5  # between two looks at all engines
LOOKED_BACK = 64  # answers that have ended, of which is told where they were computed


class Fleet:
    """A Service over many engines.

    make: what starts one.   tell: hears what befalls them; it must not wait for anybody.
    hang_seconds: without a sign of work of an engine, after which its answers go on elsewhere.
    secret: of keys of pages, where engines elsewhere have it already; None draws one.
    addresses: which engines elsewhere are to be members now; asked again and again.
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
        secret: bytes | None = None,
        addresses: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._traffic_config = traffic or TrafficConfig()
        self._addresses = addresses
        self._crew = Crew(
            make,
            config,
            hang_seconds=hang_seconds,
            drain_seconds=drain_seconds,
            tell=tell,
            look=self._look,
            secret=secret,
        )
        self._queue = EngineQueue(self._crew)
        self._size_watch: SizeWatch | None = None
        if config.most_replicas is not None:
            size = FleetSize(config.replicas, config.most_replicas)
            self._size_watch = SizeWatch(self._crew, size)
        self._traffic: Traffic | None = None  # once an engine has joined
        self._streams: dict[str, tuple[Stream, Member | None]] = {}
        self._whereabouts = Whereabouts()
        self._kept_answers = KeptAnswers()
        self._ended: deque[Stream] = deque(maxlen=LOOKED_BACK)
        self._recording = asyncio.Lock()  # one lost answer at a time
        self._resumed: Counter[str] = Counter()
        self._has_begun = False  # to take requests in
        self._is_draining = False

    @property
    def model(self) -> ModelCard:
        """Known once the service is ready."""
        assert self._crew.card is not None, "a model is known once the service is ready"
        return self._crew.card

    @property
    def state(self) -> State:
        """Ready while enough engines are."""
        if self._is_draining:
            return "draining"
        # Once it has begun, an answer by what is left is better than none.
        if self.num_ready >= (1 if self._has_begun else self._crew.config.least_ready):
            self._has_begun = True
            return "ready"
        states = {member.state for member in self.members}
        return "starting" if self._crew.card is None or "starting" in states else "failed"

    @property
    def num_ready(self) -> int:
        """Engines that are given requests."""
        return self._crew.num_ready

    @property
    def wanted_replicas(self) -> int:
        """Engines that there are, or soon will be."""
        return self._crew.wanted_replicas

    @property
    def members(self) -> tuple[Member, ...]:
        """All engines, in the order in which they were started."""
        return tuple(self._crew.members.values())

    @property
    def silent_seconds(self) -> float:
        """Of the engine that moved last: one that works is enough."""
        ready = [m.service.silent_seconds for m in self.members if m.state == "ready"]
        return min(ready, default=0.0)

    async def start(self) -> None:
        """Start all engines; returns when the least number is ready.

        Raises: what keeps the model from being loaded, where no engine could; EngineClosedError
        where the fleet is closed meanwhile.
        """
        self._crew.start()
        self._crew.run(self._watch())
        while self.state != "ready":
            if self._crew.last_error is not None and not self._crew.members:
                raise self._crew.last_error
            await self._crew.wait()

    async def wait_until_gone(self) -> str:
        """Why the fleet is given up: all engines are. Raises: EngineClosedError once closed."""
        while self._crew.card is None or not self._crew.is_given_up or self._is_draining:
            await self._crew.wait()
        return f"all engines are given up; the last one: {self._crew.last_error}"

    async def _watch(self) -> None:
        """Look at all engines again and again: which hang, and how fast each is."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._addresses is not None:
                self._crew.relink(self._addresses())
            self._crew.move_from_hung()
            self._queue.make_room()
            self._crew.look()
            await self._crew.count()
            if self._size_watch is not None:
                waited = max((each.waited for each, _ in self._streams.values()), default=0.0)
                self._size_watch.look(time.monotonic(), waited)

    def _look(self) -> None:
        """Called when engines have changed; the first one says how much is taken in."""
        terms, config = self._crew.terms, self._crew.config
        here = config.most_replicas or config.replicas
        replicas = here + len(config.members)
        if self._traffic is None and terms is not None:
            self._traffic = Traffic(
                self._traffic_config,
                max_sequences=replicas * terms.max_sequences,
                cache_tokens=replicas * terms.cache_tokens,
            )
        self._queue.look()

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
            stream = Stream(request, self._crew.config.resume, time.monotonic)
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
                self._ended.append(stream)
                if self.model.is_recorded and stream.numeric_class is not None:
                    told, numeric_class = stream.list_ended(), stream.numeric_class
                    self._kept_answers.add(stream.request, told, numeric_class=numeric_class)

    def replica_of(self, request_id: str) -> str | None:
        """Which engine has a request now, by its name; None where none has it."""
        _, member = self._streams.get(request_id, (None, None))
        return None if member is None else member.name

    async def end(self, request_id: str, choice: int) -> None:
        """End one choice that has said something: its last news follows, as of an abort."""
        stream, member = self._streams.get(request_id, (None, None))
        if stream is not None and stream.drop_choice(choice) and member is not None:
            await member.service.end(request_id, choice)

    async def stats(self) -> EngineStats:
        """What all engines hold together, and each alone."""
        await asyncio.gather(*(m.count() for m in self.members if m.state == "ready"))
        return report.stats_of(
            self.members, self._crew.router, len(self._queue), self._resumed, self._crew.gone
        )

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter in every engine, or unload it; who joins later takes up the same.

        Raises: as an engine; then none has changed.
        """
        await self._crew.adapt(name, path)

    def link(self, address: str) -> None:
        """Have an engine that runs elsewhere as a member. Raises: ConfigError for no address."""
        LinkAddress.parse(address)
        self._crew.link(address)

    async def unlink(self, address: str) -> None:
        """Let an engine that runs elsewhere go; no stream is cut."""
        await self._crew.unlink(address)

    async def scale(self, replicas: int) -> None:
        """Have so many engines; no stream is cut. Raises: ConfigError."""
        await self._crew.scale(replicas)

    async def roll(self) -> None:
        """Start each engine anew, one after another; no stream is cut."""
        await self._crew.roll()

    async def view(self, asked: ViewRequest) -> bytes:
        """What a view of an answer gives, by the engine that has its record."""
        return await (await self._keeper_of(asked.request_id, asked.choice)).view(asked)

    async def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer, by the engine that has its record."""
        keeper = await self._keeper_of(listened.request_id, listened.choice)
        async with aclosing(keeper.listen(listened)) as batches:
            async for batch in batches:
                yield batch

    async def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, by the engine that has the answer's record."""
        keeper = await self._keeper_of(tried.request_id, tried.choice)
        async with aclosing(keeper.compare(tried)) as batches:
            async for batch in batches:
                yield batch

    async def snapshot(self, owner: str) -> bytes:
        """What each engine holds now, as docs/events.md has it. Raises: EngineClosedError."""
        own = [
            stream
            for stream in (*self._ended, *(each for each, _ in self._streams.values()))
            if stream.request.owner == owner and stream.routes
        ]
        return await report.snapshot_of(
            self.members, owner, len(self._queue), self._resumed, own[-LOOKED_BACK:]
        )

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
        """End all engines, for good: what runs, waits or comes later hears EngineClosedError."""
        self._is_draining = True
        self._queue.close()
        await self._crew.close()

    async def _in_one_engine(self, stream: Stream) -> AsyncGenerator[Delta]:
        """News of a request while one engine has it; returns when that one has it no more."""
        request_id = stream.request.request_id
        binding = await self._queue.bind(stream)
        router = self._crew.router
        assert router is not None, "who is bound has a router"
        member = self._crew.members[binding.load.name]
        has_ended = False
        try:
            stream.bind(binding.load.numeric_class)
            asked, before = stream.for_engine(), stream.list_begun()
            self._note_bound(stream, member)
            route = Route(member.name, binding.why, binding.estimated, binding.missing)
            stream.routes.append(route)
            if not member.may_take(self._crew.hang_seconds):
                raise MovedError("it has ended since it was chosen")
            async with aclosing(member.service.follow(asked, before)) as deltas:
                async for delta in deltas:
                    if binding.is_waiting:
                        router.begin(binding)
                        self._crew.look()
                    if delta.seam is not None:
                        self._resumed["true" if delta.seam else "false"] += 1
                    if delta.usage is not None and delta.choice == 0 and not before:
                        router.learn(binding, delta.usage.cached_tokens)
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
        keeper = Keeper(member.name, member.service.num_starts)
        self._whereabouts.note(request_id, keeper, going_on, num_choices=params.n)

    def _note_left(self, stream: Stream, member: Member, binding: Binding) -> None:
        router = self._crew.router
        assert router is not None, "who was bound had a router"
        request_id = stream.request.request_id
        member.streams.discard(request_id)
        if not member.streams:
            member.is_empty.set()
        if request_id in self._streams:
            self._streams[request_id] = (stream, None)
        self._queue.release(binding)
        if router.loads.get(member.name) is binding.load and stream.is_done:
            salt = stream.request.cache_salt
            router.prefixes.note(member.name, router.prefixes.keys(stream.longest, salt))
        self._crew.look()

    async def _keeper_of(self, request_id: str, choice: int) -> MemberService:
        """The engine that has an answer's record; any, to say so, where none is known to.

        An answer whose engine is gone is recorded again by another of the same numbers, which
        computes it as one prompt.
        Raises: EngineClosedError where there is none at all.
        """
        found = self._whereabouts.find(request_id, choice)
        if found is not None:
            own_id, keeper = found
            if not self._has_record(keeper) and own_id not in self._streams:
                async with self._recording:
                    await self._record_again(own_id)
                _, keeper = self._whereabouts.find(own_id, choice) or found
            if self._has_record(keeper):
                return self._crew.members[keeper.member].service
        any_one = next((m for m in self.members if m.has_joined), None)
        if any_one is None:
            raise EngineClosedError("no engine is ready. Try again in a few seconds.")
        return any_one.service

    def _has_record(self, keeper: Keeper) -> bool:
        member = self._crew.members.get(keeper.member)
        return member is not None and member.service.num_starts == keeper.start

    async def _record_again(self, request_id: str) -> None:
        """Have an engine record an ended answer whose own engine is gone, where one can."""
        kept = self._kept_answers.find(request_id)
        if kept is None:
            return
        request, told, numeric_class = kept
        fitting = [
            m
            for m in self.members
            if m.may_take(self._crew.hang_seconds)
            and m.load is not None
            and m.load.numeric_class == numeric_class
        ]
        if not fitting:
            return
        member = min(fitting, key=lambda each: len(each.streams))
        with suppress(EngineClosedError, OverloadedError):
            keeper = Keeper(member.name, member.service.num_starts)
            async with aclosing(member.service.follow(request, told)) as deltas:
                async for _ in deltas:
                    pass
            choices = [each.choice for each in told]
            self._whereabouts.note(request_id, keeper, choices, num_choices=request.params.n)
