"""What a server needs of an engine, wherever it runs. Free of torch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cutaway.cache.stores import StoreStats
from cutaway.core.errors import OverloadedError
from cutaway.core.looks import (
    ComparisonRequest,
    EventBatch,
    EventRequest,
    LeverCard,
    ViewCard,
    ViewRequest,
)
from cutaway.core.output import Delta
from cutaway.core.request import Request

State = Literal["starting", "ready", "draining", "failed"]


@dataclass(frozen=True, kw_only=True)
class AdapterCard:
    """What a loaded adapter is: its name for requests, its folder, rank and size."""

    name: str
    path: str
    rank: int
    num_matrices: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a loaded model is, as plain data.

    max_length: tokens of prompt and answer together that the engine can hold.
    is_recorded: whether there is a ledger, so that answers can be opened.
    settings:   those of the engine that decide its numbers, where they are not the default.
    """

    name: str
    licence: str
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    max_length: int
    num_parameters: int
    views: tuple[ViewCard, ...] = ()
    levers: tuple[LeverCard, ...] = ()
    is_recorded: bool = True
    adapters: tuple[AdapterCard, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class EngineTerms:
    """What an engine can take, and which others give its numbers.

    cache_tokens:  tokens that its cache holds over all sequences.
    prompt_tokens: most of all prompts in one step.
    page_keys:     equal where keys of pages are.
    numeric_class: equal where a row comes out to the bit, be it in other company only where
        is_invariant is set.
    vocabulary:    the tokenizer's fingerprint.
    weights, form: equal weights have equal numbers in the same form, which is dtypes and rounding.
    """

    max_sequences: int
    cache_tokens: int
    page_size: int = 16
    prompt_tokens: int = 128
    page_keys: bytes = b""
    numeric_class: str = ""
    is_invariant: bool = False
    vocabulary: str = ""
    weights: str = ""
    form: str = ""


@dataclass(frozen=True)
class GuessCount:
    """Guesses at one place of their drafts, from 0: those that were looked at, those that stood."""

    drafter: str
    place: int
    tried: int
    right: int


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
    guesses: tuple[GuessCount, ...] = ()
    restarts: int = 0  # of the engine's process
    prompt_rate: float = 0.0  # prompt tokens per second of late; 0 where nothing is known
    step_seconds: float = 0.0  # of a step without prompts
    page_size: int = 0  # tokens of a page
    max_sequences: int = 0  # answers that run at once
    pinned_pages: int = 0  # of the used ones, which stay whatever comes
    restored_pages: int = 0  # whose content came back from a store
    stores: tuple[StoreStats, ...] = ()  # behind the pages
    fleet: FleetStats | None = None  # where several engines answer


@dataclass(frozen=True, kw_only=True)
class ReplicaStats:
    """One engine of a fleet. bound: answers that it has; numbers: None while it tells none."""

    name: str
    state: State
    bound: int = 0
    starts: int = 0
    numbers: EngineStats | None = None


@dataclass(frozen=True, kw_only=True)
class FleetStats:
    """What a fleet has counted since its start.

    waiting: requests that no engine has yet.
    resumed: answers that went on in another engine, by whether their seam was exact.
    routes:  requests by why they were sent where they were.
    estimated_tokens, found_tokens: of prompts in an engine's cache, as was thought and as it was.
    """

    replicas: tuple[ReplicaStats, ...]
    waiting: int = 0
    resumed: Mapping[str, int] = field(default_factory=dict[str, int])
    routes: Mapping[str, int] = field(default_factory=dict[str, int])
    estimated_tokens: int = 0
    found_tokens: int = 0


class Service(Protocol):
    """An engine that answers requests."""

    @property
    def model(self) -> ModelCard:
        """Known once the service is ready."""
        ...

    @property
    def state(self) -> State:
        """Whether it starts, is ready, ends or has failed."""
        ...

    @property
    def silent_seconds(self) -> float:
        """For how long the engine has shown no sign of work, be it idle; 0 while it does."""
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

    async def stats(self) -> EngineStats:
        """What the engine holds between two steps. Raises: EngineClosedError."""
        ...

    async def adapt(self, name: str, path: str | None) -> None:
        """Load an adapter from a folder, or unload it where there is no path; the card tells.

        Raises: ConfigError, ModelFormatError, EngineClosedError.
        """
        ...

    async def view(self, asked: ViewRequest) -> bytes:
        """What a view gives, as views/parts/frame.py writes it, once the engine has time for it.

        Whoever is cancelled waits no more, and what is not begun for them is not computed.
        Raises: ReplayError where there is nothing to look at or it costs too much; RequestError
        for a view or place that there is not; OverloadedError when too many wait;
        EngineClosedError.
        """
        ...

    def listen(self, listened: EventRequest) -> AsyncGenerator[EventBatch]:
        """The events of an answer as docs/events.md has them, until the last.

        No more are made before those of the last batch were taken. Leaving the loop ends it.
        Raises: ReplayError where there is no record; OverloadedError when too many listen;
        EngineClosedError.
        """
        ...

    def compare(self, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
        """How far a comparison is, and in the end what it found, as docs/compare.md has it.

        The engine works at it in moments without other work. Leaving the loop ends it.
        Raises: ReplayError where there is no record; RequestError for a change that there is not,
        or that takes too much; OverloadedError when too many wait; EngineClosedError.
        """
        ...

    async def snapshot(self, owner: str) -> bytes:
        """What the engine holds now, as docs/events.md has it. Raises: EngineClosedError."""
        ...

    async def start(self) -> None:
        """Load the model; returns when requests are taken in."""
        ...

    async def wait_until_gone(self) -> str:
        """Why the engine is given up; returns when it is, and else never."""
        ...

    def refusal(self, owner: str, num_coming: int = 0) -> OverloadedError | None:
        """Why an owner gets no further answer now, before anything of its request is parsed.

        num_coming: requests of the owner that are read and have not come to follow yet.
        """
        ...

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        ...

    async def close(self) -> None:
        """End everything."""
        ...
