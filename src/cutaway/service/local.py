"""The engine in this process, as a service: for tests and programs that bring their own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Unpack

from cutaway.core.errors import EngineClosedError, OverloadedError
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.engine.admission.request_checks import check_request
from cutaway.engine.engine_settings import EngineSettings
from cutaway.service.async_llm import AsyncLLM
from cutaway.service.bounds import TrafficConfig
from cutaway.service.card import adapt, cache_tokens_of, card_of, stats_of
from cutaway.service.service import EngineStats, ModelCard, State
from cutaway.service.snapshot import snapshot_of
from cutaway.service.traffic import Traffic


class LocalService:
    """A Service over AsyncLLM. settings: as for LLM."""

    def __init__(
        self,
        model: str,
        *,
        traffic: TrafficConfig | None = None,
        **settings: Unpack[EngineSettings],
    ) -> None:
        self._name = model
        self._settings = settings
        self._traffic_config = traffic or TrafficConfig()
        self._traffic: Traffic | None = None
        self._llm: AsyncLLM | None = None
        self._card: ModelCard | None = None
        self.state: State = "starting"

    @property
    def model(self) -> ModelCard:
        """Known once the service is ready."""
        assert self._card is not None, "a model is known once the service is ready"
        return self._card

    @property
    def silent_seconds(self) -> float:
        """Not measured: a thread that hangs cannot be ended."""
        return 0.0

    async def start(self) -> None:
        """Load the model in a thread."""
        self._llm = await asyncio.to_thread(partial(AsyncLLM, self._name, **self._settings))
        self._card = await self._llm.ask(card_of)
        self._traffic = Traffic(
            self._traffic_config,
            max_sequences=await self._llm.ask(lambda engine: engine.config.max_sequences),
            cache_tokens=await self._llm.ask(cache_tokens_of),
        )
        self.state = "ready"

    async def follow(self, request: Request) -> AsyncGenerator[Delta]:
        """News of one request until it is done. Leaving the loop ends it."""
        if self._traffic is None or self._llm is None:
            raise EngineClosedError("the engine has not started.")
        check_request(request, self.model.vocab_size, self.model.max_length)
        with self._traffic.enter(request) as place:
            async with aclosing(self._llm.follow(request)) as deltas:
                async for delta in deltas:
                    place.begin()
                    yield delta

    async def end(self, request_id: str, choice: int) -> None:
        """End one choice that has said something: its last news follows, as of an abort."""
        if self._llm is not None:
            await self._llm.ask(lambda engine: engine.abort(request_id, choice=choice))

    async def stats(self) -> EngineStats:
        """What the engine holds between two steps."""
        if self._llm is None:
            raise EngineClosedError("the engine has not started.")
        return await self._llm.ask(stats_of)

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter, or unload it where there is no path; the card tells."""
        if self._llm is None:
            raise EngineClosedError("the engine has not started.")
        adapters = await self._llm.ask(lambda engine: adapt(engine, name, path))
        self._card = replace(self.model, adapters=adapters)

    async def view(self, asked: ViewRequest) -> bytes:
        """What a view of an answer gives, in a moment without other work."""
        if self._llm is None:
            raise EngineClosedError("the engine has not started.")
        return await self._llm.look(asked)

    async def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer, while it is made or afterwards, until the last."""
        if self._llm is None:
            raise EngineClosedError("the engine has not started.")
        async with aclosing(self._llm.listen(listened)) as batches:
            async for batch in batches:
                yield batch

    async def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, and in the end what it found."""
        if self._llm is None:
            raise EngineClosedError("the engine has not started.")
        async with aclosing(self._llm.compare(tried)) as batches:
            async for batch in batches:
                yield batch

    async def snapshot(self, owner: str) -> bytes:
        """What the engine holds between two steps, as somebody may see it."""
        if self._llm is None:
            raise EngineClosedError("the engine has not started.")
        return await self._llm.ask(lambda engine: snapshot_of(engine, owner))

    async def wait_until_gone(self) -> str:
        """Not found out: a thread that hangs cannot be ended."""
        return await asyncio.get_running_loop().create_future()

    def refusal(self, owner: str, num_coming: int = 0) -> OverloadedError | None:
        """Why an owner gets no further answer now, before anything of its request is parsed."""
        traffic = self._traffic
        return None if traffic is None else traffic.refusal(owner, num_coming=num_coming)

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        self.state = "draining"
        if self._traffic is not None:
            await self._traffic.drain(seconds)

    async def close(self) -> None:
        """End everything."""
        self.state = "draining"
        if self._llm is not None:
            await self._llm.close()
