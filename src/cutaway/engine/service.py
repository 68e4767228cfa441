"""What a server needs of an engine, wherever it runs. Free of torch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from cutaway.core.output import Delta
from cutaway.core.request import Request

State = Literal["starting", "ready", "draining", "failed"]


@dataclass(frozen=True, kw_only=True)
class ViewCard:
    """A view that there is. takes: the places that mean something to it."""

    name: str
    stage: str
    question: str
    takes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LeverCard:
    """What can be changed of an answer, and how far.

    kind:   of its value: number, whole, choice, text, token (a whole number or a text, at a step),
            layer (LAYER, LAYER.HEAD or a part) or patch (LAYER@POSITION:OTHER).
    least, most: of a number, of a token's id, or of a layer; is_open: least itself is not allowed.
    num_heads: of a layer, where one of them can be named.
    now:    what the engine has, where the answer does not say.
    refused: why it cannot be changed here; None where it can.
    """

    name: str
    meaning: str
    group: str
    kind: str
    least: float | None = None
    most: float | None = None
    is_open: bool = False
    num_heads: int | None = None
    choices: tuple[str, ...] = ()
    now: str | None = None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a loaded model is, as plain data.

    max_length: tokens of prompt and answer together that the engine can hold.
    is_recorded: whether there is a ledger, so that answers can be opened.
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


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What of an answer somebody wants in a file.

    views: by name; empty takes all.
    token: of the answer, at which every view is; None for none.
    steps, layers, heads: as engine/saved_places.py reads them.
    """

    views: tuple[str, ...] = ()
    token: int | None = None
    steps: str | None = None
    layers: str | None = None
    heads: str | None = None
    redact: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A view of an answer that somebody wants to see, or a file of many.

    owner:  who had the answer made; nobody else finds it.
    places: fields of views/query.py.
    is_json: whether as JSON instead of the layout of safetensors.
    is_cost: whether what it would take is told instead, as JSON; nothing is computed.
    max_bytes, max_flops: what running the answer again may take.
    file:   what of the answer is wanted as a trace file; then view and places mean nothing.
    """

    request_id: str
    choice: int
    owner: str
    view: str
    places: Mapping[str, int | str | None]
    is_json: bool
    is_cost: bool
    max_bytes: int
    max_flops: int
    file: Kept | None = None

    def is_of_same(self, other: Asked) -> bool:
        """Whether both look at one answer within the same bounds."""
        names = ("request_id", "choice", "owner", "max_bytes", "max_flops")
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A change to an answer that somebody wants compared with it.

    owner:  who had the answer made; nobody else finds it.
    change: as engine/levers.py reads it.   num_runs: of each side.
    price:  of this machine per hour.
    max_tokens, max_bytes, max_flops: what it may take.
    """

    request_id: str
    choice: int
    owner: str
    change: str
    num_runs: int
    price: float | None
    max_tokens: int | None
    max_bytes: int
    max_flops: int


@dataclass(frozen=True, kw_only=True)
class Listened:
    """An answer whose events somebody wants, while it is made or afterwards.

    owner: who had the answer made; nobody else finds it.
    after: number of the last event that is known already; -1 for none.
    """

    request_id: str
    choice: int
    owner: str
    after: int = -1


@dataclass(frozen=True)
class Batch:
    """Events of an answer with their numbers, each as JSON. is_last: there will be no more."""

    events: tuple[tuple[int, bytes], ...]
    is_last: bool


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

    async def stats(self) -> EngineStats: ...

    async def view(self, asked: Asked) -> bytes:
        """What a view gives, as views/frame.py writes it, once the engine has a moment for it.

        Whoever is cancelled waits no more, and what is not begun for them is not computed.
        Raises: ReplayError where there is nothing to look at or it costs too much; RequestError
        for a view or place that there is not; OverloadedError when too many wait;
        EngineClosedError.
        """
        ...

    def listen(self, listened: Listened) -> AsyncGenerator[Batch]:
        """The events of an answer as docs/events.md has them, until the last.

        No more are made before those of the last batch were taken. Leaving the loop ends it.
        Raises: ReplayError where there is no record; OverloadedError when too many listen;
        EngineClosedError.
        """
        ...

    def compare(self, tried: Tried) -> AsyncGenerator[Batch]:
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

    async def gone(self) -> str:
        """Why the engine is given up; returns when it is, and else never."""
        ...

    async def drain(self, seconds: float) -> None:
        """Take nothing new in, and wait until what runs has ended, for so long at most."""
        ...

    async def close(self) -> None:
        """End everything."""
        ...
