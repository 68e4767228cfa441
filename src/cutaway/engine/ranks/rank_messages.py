"""What the leading rank says to a follower, what that says back, and how it is written.

msgpack, each message behind its length; nothing that arrives is ever executed.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import TypeAlias, cast

import msgspec

from cutaway.core.step import Numbers
from cutaway.host.sealed_socket import ByteSocket

_LENGTH = struct.Struct("<I")


class JoinRanks(msgspec.Struct, tag=True, array_like=True):
    """Meet the others, and load your part of a model; the first message of all.

    model:    by what it is found on this host; a rank of another host has its own.
    settings: fields of EngineConfig.   folder: where ranks meet on this host.
    seconds:  that a rank waits for another.   meeting: host and port where those of others do.
    """

    model: str
    settings: dict[str, str | int | bool | tuple[str, ...] | None]
    rank: int
    size: int
    folder: str
    seconds: float
    meeting: tuple[str, int] | None = None


class TurnAway(msgspec.Struct, tag=True, array_like=True):
    """A rank of another host may not join."""

    why: str


class OpenPages(msgspec.Struct, tag=True, array_like=True):
    """Make pages, and what runs steps over them.

    num_pages: of each cache group.   graphs: whether rank 0 captures steps of this pool.
    """

    number: int
    num_pages: list[int]
    page_size: int
    max_length: int
    max_tokens: int | None
    keeps: bool
    is_plain: bool
    graphs: bool = False


class PreparePages(msgspec.Struct, tag=True, array_like=True):
    """Capture the steps that this device captures, together with the others."""

    number: int


class RunStep(msgspec.Struct, tag=True, array_like=True):
    """Compute a step over some pages. is_tapped: whether inner values are read in rank 0."""

    number: int
    numbers: Numbers
    is_tapped: bool


class ClearPages(msgspec.Struct, tag=True, array_like=True):
    """Zero some pages of each group."""

    number: int
    pages: list[list[int]]


class CopyPages(msgspec.Struct, tag=True, array_like=True):
    """Copy of each group a page to another."""

    number: int
    copies: list[tuple[int, int] | None]


class ClosePages(msgspec.Struct, tag=True, array_like=True):
    """Let pages go."""

    number: int


class AskToJoin(msgspec.Struct, tag=True, array_like=True):
    """A rank of another host comes; its first message of all.

    files: a digest of the model's.   free: bytes of memory; None where its system does not say.
    """

    rank: int
    version: str
    files: str
    free: int | None


class AtStage(msgspec.Struct, tag=True, array_like=True):
    """A follower has started, met the others, or loaded: the stages of a start, in this order.

    opened follows each OpenPages.   num_bytes: of its weights once they are loaded, else of pages.
    """

    stage: str
    num_bytes: int = 0


class CannotFollow(msgspec.Struct, tag=True, array_like=True):
    """A follower cannot go on, and ends."""

    why: str


Order: TypeAlias = (
    JoinRanks | TurnAway | OpenPages | PreparePages | RunStep | ClearPages | CopyPages | ClosePages
)
Reply: TypeAlias = AskToJoin | AtStage | CannotFollow


def _as_list(value: object) -> list[int]:
    """Arrays of a step's numbers, which the format has no kind for."""
    if isinstance(value, array):
        return cast("array[int]", value).tolist()
    raise TypeError(f"{type(value).__name__} is in no message between ranks.")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_as_list)
_ORDERS = msgspec.msgpack.Decoder(Order)
_REPLIES = msgspec.msgpack.Decoder(Reply)


def send(link: ByteSocket, said: Order | Reply) -> None:
    """Write a message. Raises: OSError where the other side is gone."""
    body = _ENCODER.encode(said)
    link.sendall(_LENGTH.pack(len(body)) + body)


def receive_order(link: ByteSocket) -> Order | None:
    """The next order; None where the leader is gone."""
    body = _receive(link)
    return None if body is None else _ORDERS.decode(body)


def receive_reply(link: ByteSocket) -> Reply | None:
    """The next reply; None where the follower is gone. Raises: TimeoutError."""
    body = _receive(link)
    return None if body is None else _REPLIES.decode(body)


def _receive(link: ByteSocket) -> bytes | None:
    head = _exactly(link, _LENGTH.size)
    return None if head is None else _exactly(link, _LENGTH.unpack(head)[0])


def _exactly(link: ByteSocket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = link.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def as_lists(pages: Sequence[Sequence[int]]) -> list[list[int]]:
    """Page numbers as messages carry them."""
    return [list(group) for group in pages]
