"""Engines that are scripted, for fleets: tokens follow from seed, choice and place alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any

import msgspec

from cutaway.cache.prefix import root_key
from cutaway.core.errors import EngineClosedError, MovedError, ReplayError
from cutaway.core.output import Delta, DrawProof, Timings, ToldChoice, Usage
from cutaway.core.request import Request, SamplingParams
from cutaway.fleet.fleet import Fleet
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.service.service import EngineStats, EngineTerms, GuessCount, ModelCard, State
from services import run_apart

CARD = ModelCard(
    name="fake",
    licence="none",
    architecture="none",
    dtype="float32",
    device="cpu",
    vocab_size=1000,
    max_length=4096,
    num_parameters=1,
)
TERMS = EngineTerms(max_sequences=8, cache_tokens=4096, numeric_class="a", is_invariant=True)


def token_of(request: Request, choice: int, place: int) -> int:
    """What any engine draws there."""
    return hash((request.params.seed, choice, place, request.prompt_token_ids)) % 1000


def in_loop(
    test: Callable[..., Coroutine[Any, Any, None]], seconds: float = 120
) -> Callable[..., None]:
    """A test that is a coroutine, run to its end, which comes within so many seconds."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def within() -> None:
            async with asyncio.timeout(seconds):
                await test(*arguments, **named)

        run_apart(within())

    return run


class FakeEngine:
    """A member whose every step is a turn of the event loop.

    pace: seconds of a step.   numbers: added to each checksum, so that others differ.
    """

    def __init__(self, name: str, changed: Callable[[], None], secret: bytes) -> None:
        self.name, self._changed = name, changed
        self.terms = replace(TERMS, page_keys=root_key("page keys", secret))
        self.model = CARD
        self.state: State = "starting"
        self.silent_seconds = 0.0
        self.num_starts = 0
        self.numbers, self.pace, self.rate = 0, 0.0, 1000.0
        self.poison: int | None = None  # a token of a prompt that ends the engine
        self.poison_after = 0
        self.running: dict[str, asyncio.Queue[Exception]] = {}
        self.most_running = 0
        self.asked: list[str] = []
        self.records: set[str] = set()  # since its latest start
        self.ended: list[tuple[str, int]] = []
        self._choices: dict[str, set[int]] = {}
        self.closed = False
        self.restart_seconds: float | None = 0.01
        self.fails_to_start: Exception | None = None
        self.refusal: Exception | None = None  # what it says of a request that it does not take

    async def start(self) -> None:
        await asyncio.sleep(0)
        if self.fails_to_start is not None:
            raise self.fails_to_start
        self.num_starts += 1
        self._become("ready")

    async def wait_until_gone(self) -> str:
        return await asyncio.get_running_loop().create_future()

    def _become(self, state: State) -> None:
        self.state = state
        self._changed()

    def kill(self) -> None:
        """As kill -9: who follows hears so, and the engine comes back."""
        if self.state != "ready":
            return
        self.state = "failed"
        self.records.clear()
        for inbox in self.running.values():
            inbox.put_nowait(EngineClosedError("the engine ended while this answer ran."))
        self._changed()
        if self.restart_seconds is not None:
            asyncio.get_running_loop().call_later(self.restart_seconds, self._back)

    def _back(self) -> None:
        if not self.closed:
            self.num_starts += 1
            self._become("ready")

    def move(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].put_nowait(MovedError("moved"))

    async def follow(
        self, request: Request, told: tuple[ToldChoice, ...] = ()
    ) -> AsyncGenerator[Delta]:
        if self.state != "ready":
            raise EngineClosedError("the engine is being started.")
        self.asked.append(request.request_id)
        self.records.add(request.request_id)
        if self.refusal is not None and request.request_id.startswith("bad"):
            raise self.refusal
        name, params = request.request_id, request.params
        before = told or tuple(ToldChoice(choice) for choice in range(params.n))
        places = {each.choice: len(each.token_ids) for each in before}
        seams = {each.choice: each for each in before if each.token_ids}
        inbox = self.running[name] = asyncio.Queue()
        self._choices[name] = set(places)
        self.most_running = max(self.most_running, len(self.running))
        num_steps = 0
        try:
            while places:
                await asyncio.sleep(self.pace)
                num_steps += 1
                if self.poison in request.prompt_token_ids and num_steps > self.poison_after:
                    self.kill()
                if not inbox.empty():
                    raise inbox.get_nowait()
                for choice in tuple(places):
                    if choice in seams:
                        each = seams.pop(choice)
                        again = self.draw(request, choice, places[choice] - 1)
                        if each.finish_reason is not None:
                            del places[choice]
                        is_exact = again == each.draws[-1]
                        yield Delta(name, choice, seam=is_exact, finish_reason=each.finish_reason)
                        continue
                    if choice not in self._choices[name]:
                        del places[choice]
                        yield self._last(request, choice, 0, "abort")
                        continue
                    place = places[choice]
                    places[choice] += 1
                    delta = Delta(
                        name,
                        choice,
                        (token_of(request, choice, place),),
                        f"<{token_of(request, choice, place)}>",
                        draws=(self.draw(request, choice, place),),
                    )
                    if places[choice] == params.max_tokens:
                        del places[choice]
                        last = self._last(request, choice, place + 1, "length")
                        delta = msgspec.structs.replace(
                            delta, finish_reason="length", usage=last.usage, timings=last.timings
                        )
                    yield delta
        finally:
            del self.running[name], self._choices[name]

    def draw(self, request: Request, choice: int, place: int) -> DrawProof:
        return DrawProof(None, 1.0, 2.0, self.numbers + token_of(request, choice, place))

    def _last(self, request: Request, choice: int, count: int, reason: Any) -> Delta:
        usage = Usage(len(request.prompt_token_ids), count, 0)
        return Delta(
            request.request_id,
            choice,
            finish_reason=reason,
            usage=usage,
            timings=Timings(0, 0, 0, 0, 0),
        )

    async def end(self, request_id: str, choice: int) -> None:
        self.ended.append((request_id, choice))
        if request_id in self._choices:
            self._choices[request_id].discard(choice)

    async def stats(self) -> EngineStats:
        guesses = (GuessCount("ngram", 0, 3, 2),)
        return EngineStats(
            running=len(self.running), prompt_rate=self.rate, steps=3, guesses=guesses
        )

    async def snapshot(self, owner: str) -> bytes:
        return b'{"schema":1,"steps":3,"running":[]}'

    async def view(self, asked: Any) -> bytes:
        if asked.request_id not in self.records:
            raise ReplayError("there is no record of it")
        return self.name.encode()

    async def listen(self, listened: Any) -> AsyncGenerator[Any]:
        yield self.name

    async def compare(self, tried: Any) -> AsyncGenerator[Any]:
        yield self.name

    async def drain(self, seconds: float) -> None:
        self.state = "draining"

    async def close(self) -> None:
        self.closed = True
        self.state = "draining"
        for inbox in self.running.values():
            inbox.put_nowait(EngineClosedError("closed"))


class Engines:
    """All fake engines of a fleet, by name, and the fleet over them."""

    def __init__(self, **settings: Any) -> None:
        self.all: dict[str, FakeEngine] = {}
        self.told: list[str] = []
        self.prepare: Callable[[FakeEngine], None] = lambda engine: None
        own = {k: settings.pop(k) for k in ("traffic", "hang_seconds") if k in settings}
        drain = settings.pop("drain_seconds", 5.0)
        config = FleetConfig(**settings)
        self.fleet = Fleet(self.make, config, drain_seconds=drain, tell=self.told.append, **own)

    def make(
        self, name: str, changed: Callable[[], None], secret: bytes, replicas: int
    ) -> FakeEngine:
        made = self.all[name] = FakeEngine(name, changed, secret)
        self.prepare(made)
        return made

    def __getitem__(self, name: int) -> FakeEngine:
        return self.all[str(name)]

    async def __aenter__(self) -> Engines:
        await self.fleet.start()
        while any(m.state == "starting" for m in self.fleet.members):
            await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fleet.close()


def asked(name: str, *, length: int = 20, owner: str = "", **fields: Any) -> Request:
    """A request of random tokens that follow from its name."""
    prompt = fields.pop("prompt", tuple(hash((name, i)) % 900 for i in range(length)))
    deadline = fields.pop("deadline", None)
    params = SamplingParams(**{"max_tokens": 12, "seed": 5, **fields})
    return Request(
        request_id=name, prompt_token_ids=prompt, params=params, owner=owner, deadline=deadline
    )


async def heard(fleet: Fleet, request: Request) -> dict[int, tuple[list[int], str, Delta]]:
    """Tokens, text and last news of each choice."""
    ids: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    last: dict[int, Delta] = {}
    async for delta in fleet.follow(request):
        assert delta.choice not in last, "nothing comes after the end"
        assert delta.draws == (), "draws stay in the fleet"
        ids.setdefault(delta.choice, []).extend(delta.token_ids)
        texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        if delta.finish_reason is not None:
            last[delta.choice] = delta
    return {choice: (ids[choice], texts[choice], last[choice]) for choice in ids}


def whole(request: Request) -> dict[int, list[int]]:
    """The tokens of an undisturbed run."""
    assert request.params.max_tokens is not None
    return {
        choice: [token_of(request, choice, place) for place in range(request.params.max_tokens)]
        for choice in range(request.params.n)
    }
