"""Members of a fleet that are real engines in threads of this process: killed and back at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from cutaway.cache.prefix import root_key
from cutaway.core.errors import EngineClosedError, MovedError
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.service.async_llm import AsyncLLM
from cutaway.service.card import card_of, terms_of
from cutaway.service.local import LocalService
from cutaway.service.service import EngineTerms


class LocalMember(LocalService):
    """An engine that can be killed: who follows hears so, nothing of it is heard any more."""

    def __init__(
        self, model: str, changed: Callable[[], None], secret: bytes, **settings: Any
    ) -> None:
        super().__init__(model, **settings)
        self._changed, self._secret = changed, secret
        self._running: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_starts = 0
        self.terms: EngineTerms

    async def start(self) -> None:
        await super().start()
        llm = self._llm
        assert llm is not None, "it has started"
        await llm.ask(lambda engine: setattr(engine, "tells_draws", True))
        terms = await llm.ask(terms_of)
        self.terms = replace(terms, page_keys=root_key("page keys", self._secret))
        self._card = await llm.ask(card_of)
        self.num_starts += 1
        self._changed()

    def kill(self) -> None:
        """As kill -9; another comes in its place."""
        self.state = "failed"
        llm, self._llm = self._llm, None
        for ending in self._running.values():
            if not ending.done():
                ending.set_exception(EngineClosedError("the engine ended while this answer ran."))
        self._changed()
        task = asyncio.get_running_loop().create_task(self._begin_again(llm))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_again(self, dead: AsyncLLM | None) -> None:
        if dead is not None:
            await dead.close()
        await self.start()

    def move(self, request_id: str) -> None:
        ending = self._running.get(request_id)
        if ending is not None and not ending.done():
            ending.set_exception(MovedError("this answer goes on in another engine."))

    async def follow(
        self, request: Request, told: tuple[ToldChoice, ...] = ()
    ) -> AsyncGenerator[Delta]:
        if self._llm is None:
            raise EngineClosedError("the engine is being started.")
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running[request.request_id] = ending
        try:
            async with aclosing(self._llm.follow(request, told)) as deltas:
                while True:
                    coming = asyncio.ensure_future(anext(deltas, None))
                    await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                    if ending.done():
                        coming.cancel()
                        await asyncio.gather(coming, return_exceptions=True)
                        ending.result()
                    delta = coming.result()
                    if delta is None:
                        return
                    yield delta
        finally:
            self._running.pop(request.request_id, None)
            ending.cancel()

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)
        await super().close()
