"""What services over an engine elsewhere share: calls by messages, and the door before them.

Free of torch. Where the engine is, and what becomes of it, is said by ProcessService and
LinkService.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from cutaway.core.errors import OverloadedError
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.engine.admission.request_checks import check_request
from cutaway.service.engine_calls import EngineCalls, Hearer
from cutaway.service.engine_messages import Abort, Loaded
from cutaway.service.service import EngineStats, EngineTerms, ModelCard
from cutaway.service.traffic import AdmittedRequest, Traffic


class MessageService(ABC):
    """The part of a Service that hands calls to an engine elsewhere and its news back."""

    def __init__(self, *, is_member: bool = False) -> None:
        self._is_member = is_member  # its fleet has looked at what it is asked
        self._calls = EngineCalls(self._alive)
        self._traffic: Traffic | None = None
        self._loaded: Loaded | None = None

    @abstractmethod
    def _alive(self) -> Hearer:
        """Who is told what is asked. Raises: EngineClosedError where nobody would answer."""

    @property
    @abstractmethod
    def _reached(self) -> Hearer | None:
        """Who hears, be it in silence; None where nobody is there."""

    @property
    def model(self) -> ModelCard:
        """Known once the service is ready."""
        assert self._loaded is not None, "a model is known once the service is ready"
        return self._loaded.card

    @property
    def terms(self) -> EngineTerms:
        """What the engine can take. Known once the service is ready."""
        assert self._loaded is not None, "terms are known once the service is ready"
        return self._loaded.terms

    def follow(self, request: Request, told: tuple[ToldChoice, ...] = ()) -> AsyncGenerator[Delta]:
        """News of one request until it is done. Leaving the loop ends it.

        told: where another engine began it: its choices that have not ended.
        Raises: RequestError, OverloadedError; EngineClosedError when the engine ends, or is not
        there; MovedError when move was called.
        """
        return self._calls.follow(request, told, partial(self._enter, request))

    def _enter(self, request: Request) -> AdmittedRequest:
        self._alive()
        assert self._traffic is not None, "the door is made with the first engine"
        if not self._is_member:
            check_request(request, self.model.vocab_size, self.model.max_length)
        assert request.request_id not in self._calls.open, "a request's id is its own while it runs"
        return self._traffic.enter(request)

    def move(self, request_id: str) -> None:
        """Have who follows a request go on elsewhere; what was told before is told first."""
        self._calls.move(request_id)

    async def end(self, request_id: str, choice: int) -> None:
        """End one choice that has said something: its last news follows, as of an abort."""
        if (reached := self._reached) is not None:
            reached.say(Abort(request_id, choice))

    async def stats(self) -> EngineStats:
        """What the engine holds between two steps. Raises: EngineClosedError."""
        return await self._calls.stats()

    async def view(self, asked: ViewRequest) -> bytes:
        """What a view of an answer gives. Raises: ReplayError, RequestError, EngineClosedError."""
        return await self._calls.view(asked)

    async def snapshot(self, owner: str) -> bytes:
        """What the engine holds now, as somebody may see it. Raises: EngineClosedError."""
        return await self._calls.snapshot(owner)

    async def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer, while it is made or afterwards, until the last.

        Raises: ReplayError, OverloadedError, EngineClosedError.
        """
        async with aclosing(self._calls.listen(listened)) as batches:
            async for batch in batches:
                yield batch

    async def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, and in the end what it found. Leaving the loop ends it.

        Raises: ReplayError, RequestError, OverloadedError, EngineClosedError.
        """
        async with aclosing(self._calls.compare(tried)) as batches:
            async for batch in batches:
                yield batch

    def refusal(self, owner: str, num_coming: int = 0) -> OverloadedError | None:
        """Why an owner gets no further answer now, before anything of its request is parsed."""
        traffic = self._traffic
        return None if traffic is None else traffic.refusal(owner, num_coming=num_coming)
