"""What somebody asks to see of an answer, and what can be seen or changed of it. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
class FileRequest:
    """What of an answer somebody wants in a file.

    views: by name; empty takes all.
    token: of the answer, at which every view is; None for none.
    steps, layers, heads: as replay/places.py reads them.
    """

    views: tuple[str, ...] = ()
    token: int | None = None
    steps: str | None = None
    layers: str | None = None
    heads: str | None = None
    redact: bool = False


@dataclass(frozen=True, kw_only=True)
class ViewRequest:
    """A view of an answer that somebody wants to see, or a file of many.

    owner:  who had the answer made; nobody else finds it.
    places: fields of views/parts/query.py.
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
    file: FileRequest | None = None

    def is_of_same(self, other: ViewRequest) -> bool:
        """Whether both look at one answer within the same bounds."""
        names = ("request_id", "choice", "owner", "max_bytes", "max_flops")
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """A change to an answer that somebody wants compared with it.

    owner:  who had the answer made; nobody else finds it.
    change: as compare/levers.py reads it.   num_runs: of each side.
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
class EventRequest:
    """An answer whose events somebody wants, while it is made or afterwards.

    owner: who had the answer made; nobody else finds it.
    after: number of the last event that is known already; -1 for none.
    """

    request_id: str
    choice: int
    owner: str
    after: int = -1


@dataclass(frozen=True)
class EventBatch:
    """Events of an answer with their numbers, each as JSON. is_last: there will be no more."""

    events: tuple[tuple[int, bytes], ...]
    is_last: bool
