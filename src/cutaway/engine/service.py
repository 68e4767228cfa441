"""What a server needs of an engine, wherever it runs. Free of torch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from cutaway.core.output import Delta
from cutaway.core.request import Request

State = Literal["starting", "ready", "draining", "failed"]


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a loaded model is, as plain data.

    max_length: tokens of prompt and answer together that the engine can hold.
    """

    name: str
    licence: str
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    max_length: int
    num_parameters: int


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """What an engine holds now, and what it has counted since its start."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_total: int = 0
    hit_tokens: int = 0
    query_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    restarts: int = 0  # of the engine's process


class Service(Protocol):
    """An engine that answers requests."""

    @property
    def model(self) -> ModelCard:
        """Known once the service is ready."""
        ...

    @property
    def state(self) -> State: ...

    @property
    def silent_seconds(self) -> float:
        """For how long nothing came of the engine although it has work; 0 while it has none."""
        ...

    def follow(self, request: Request) -> AsyncIterator[Delta]:
        """News of one request until it is done. Leaving the loop ends it.

        Raises: RequestError for what can never be computed, OverloadedError when too much waits,
        EngineClosedError when the engine ends before the answer.
        """
        ...

    async def end(self, request_id: str, choice: int) -> None:
        """End one choice that has said something: its last news follows, as of an abort."""
        ...

    async def stats(self) -> EngineStats: ...

    async def start(self) -> None:
        """Load the model; returns when requests are taken in."""
        ...

    async def gone(self) -> str:
        """Why the engine is given up; returns when it is, and else never."""
        ...

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        ...

    async def close(self) -> None:
        """End everything."""
        ...
