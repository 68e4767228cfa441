"""What a server's process and its engine's process say to each other, and how it is written.

Free of torch. msgpack, each message behind its length; nothing that arrives is ever executed.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

import msgspec

from cutaway.core import errors
from cutaway.core.errors import CutawayError
from cutaway.core.looks import ComparisonRequest, EventBatch, EventRequest, ViewRequest
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.service.service import AdapterCard, EngineStats, EngineTerms, ModelCard

# Asks where every thread stands, on stderr: code alone, no values. No thread is needed to answer.
DUMP_SIGNAL = signal.SIGUSR1

_LENGTH = struct.Struct("<I")


class Load(msgspec.Struct, tag=True, array_like=True):
    """Load a model; the first message of all. settings: fields of EngineConfig.

    page_secret: of which keys of pages are made; None draws one.
    num_sharing: engines that share this one's memory, itself included.
    is_member:   whether others may have to go on from what it tells.
    """

    model: str
    settings: dict[str, str | int | bool | tuple[str, ...] | None]
    page_secret: bytes | None = None
    num_sharing: int = 1
    is_member: bool = False


class Add(msgspec.Struct, tag=True, array_like=True):
    """Queue a request."""

    request: Request


class Continue(msgspec.Struct, tag=True, array_like=True):
    """Go on with choices of a request that another engine began."""

    request: Request
    told: tuple[ToldChoice, ...]


class Abort(msgspec.Struct, tag=True, array_like=True):
    """End a request, if it has not ended, or one of its choices alone."""

    request_id: str
    choice: int | None = None


class Hold(msgspec.Struct, tag=True, array_like=True):
    """Make no more of an answer than its reader takes, or go on with it."""

    request_id: str
    is_held: bool


class Adapt(msgspec.Struct, tag=True, array_like=True):
    """Load an adapter, or unload it where path is None. number: comes back with the answer."""

    number: int
    name: str
    path: str | None


class Count(msgspec.Struct, tag=True, array_like=True):
    """Say what the engine holds. number: comes back with the answer."""

    number: int


class See(msgspec.Struct, tag=True, array_like=True):
    """Show a view of an answer. number: comes back with it."""

    number: int
    asked: ViewRequest


class Survey(msgspec.Struct, tag=True, array_like=True):
    """Tell somebody what the engine holds. number: comes back with it."""

    number: int
    owner: str


class Listen(msgspec.Struct, tag=True, array_like=True):
    """Tell the events of an answer. number: comes back with each batch."""

    number: int
    listened: EventRequest


class Try(msgspec.Struct, tag=True, array_like=True):
    """Compare an answer with a changed one. number: comes back with all that is told of it."""

    number: int
    tried: ComparisonRequest


class More(msgspec.Struct, tag=True, array_like=True):
    """The last batch of events was taken."""

    number: int


class Leave(msgspec.Struct, tag=True, array_like=True):
    """Nobody listens any more, or waits for a look or a comparison."""

    number: int


class Ping(msgspec.Struct, tag=True, array_like=True):
    """Say how far work has come. Answered at once, even in the middle of a step."""


Command: TypeAlias = (
    Load
    | Add
    | Continue
    | Abort
    | Hold
    | Adapt
    | Count
    | See
    | Survey
    | Listen
    | Try
    | More
    | Leave
    | Ping
)


class Loaded(msgspec.Struct, tag=True, array_like=True):
    """Requests are taken in."""

    card: ModelCard
    terms: EngineTerms


class Unloadable(msgspec.Struct, tag=True, array_like=True):
    """The model cannot be loaded; the process ends."""

    error: CutawayError


class News(msgspec.Struct, tag=True, array_like=True):
    """What one step says of all requests."""

    deltas: list[Delta]


class Failed(msgspec.Struct, tag=True, array_like=True):
    """Nothing, or nothing more, comes of what was asked. asker: its number, or the request's id."""

    asker: int | str
    error: CutawayError


class EngineCounts(msgspec.Struct, tag=True, array_like=True):
    """What the engine holds."""

    number: int
    stats: EngineStats


class LoadedAdapters(msgspec.Struct, tag=True, array_like=True):
    """The adapters that are loaded now."""

    number: int
    adapters: tuple[AdapterCard, ...]


class Seen(msgspec.Struct, tag=True, array_like=True):
    """What a view gave, as views/parts/frame.py writes it, or what the engine holds."""

    number: int
    frame: bytes


class Heard(msgspec.Struct, tag=True, array_like=True):
    """Events of an answer, or of a comparison."""

    number: int
    batch: EventBatch


class Progress(msgspec.Struct, tag=True, array_like=True):
    """How far work has come: another count than the last one means that it goes on."""

    count: int


Report: TypeAlias = (
    Loaded | Unloadable | News | Failed | LoadedAdapters | EngineCounts | Seen | Heard | Progress
)


def encode_frame(message: Command | Report) -> bytes:
    """A message with its length before it."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_command(body: bytes) -> Command:
    """What a server's process said."""
    return _COMMANDS.decode(body)


def asker_of(body: bytes) -> int | str | None:
    """Who waits for a command that cannot be read; None for nobody."""
    kind, first, *_ = cast("list[object]", msgspec.msgpack.decode(body))
    if kind in ("Add", "Continue") and isinstance(first, dict):
        asker = cast("dict[str, object]", first).get("request_id")
        return asker if isinstance(asker, str) else None
    is_awaited = kind in ("Adapt", "Count", "See", "Survey", "Listen", "Try")
    return first if is_awaited and isinstance(first, int) else None


def decode_report(body: bytes) -> Report:
    """What an engine's process said."""
    return _REPORTS.decode(body)


class Frames:
    """Cuts a stream of bytes into the bodies of messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete now. To be read to their end."""
        self._rest += data
        start = 0
        while len(self._rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, start)
            end = start + _LENGTH.size + length
            if end > len(self._rest):
                break
            with memoryview(self._rest) as whole:  # a slice of the bytes themselves is a copy more
                body = bytes(whole[start + _LENGTH.size : end])
            yield body
            start = end
        del self._rest[:start]


def to_plain(value: Any) -> Any:
    """What msgspec does not write by itself."""
    if isinstance(value, CutawayError):
        return [_public_name(type(value)), str(value), vars(value)]
    assert isinstance(value, Mapping), f"{type(value)} has no place in a message"
    return dict(cast("Mapping[Any, Any]", value))


def from_plain(_: type, value: Any) -> Any:
    """An error of our own tree: its class by name, its words, its further attributes."""
    name, words, attributes = value
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, CutawayError)):
        raise ValueError("this is no error of Cutaway")
    error = kind.__new__(kind)
    Exception.__init__(error, words)
    vars(error).update(attributes)
    return error


def _public_name(kind: type[CutawayError]) -> str:
    """The nearest class that core/errors.py has."""
    return next(each.__name__ for each in kind.__mro__ if hasattr(errors, each.__name__))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=to_plain)
_COMMANDS = msgspec.msgpack.Decoder(Command, dec_hook=from_plain)
_REPORTS = msgspec.msgpack.Decoder(Report, dec_hook=from_plain)
