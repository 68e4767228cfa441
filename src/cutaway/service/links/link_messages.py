"""What a front and a member on another host say beside what any engine is told and says.

Free of torch. msgpack in the sealed messages of host/sealed_link.py; nothing that arrives is ever
executed.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from cutaway import __version__
from cutaway.core.errors import ConfigError
from cutaway.service.engine_messages import (
    Abort,
    Adapt,
    Add,
    Continue,
    Count,
    EngineCounts,
    Failed,
    Heard,
    Hold,
    Leave,
    Listen,
    Loaded,
    LoadedAdapters,
    More,
    News,
    See,
    Seen,
    Survey,
    Try,
    from_plain,
    to_plain,
)
from cutaway.service.service import State

# Changes with any message: hosts of one fleet have one version of Cutaway.
FORM = 2


class Introduce(msgspec.Struct, tag=True, array_like=True):
    """Who one is; the first message of both. role: what one is, so that two fronts say so."""

    version: str = __version__
    form: int = FORM
    role: Literal["front", "member"] = "front"


class Beat(msgspec.Struct, tag=True, array_like=True):
    """The member lives, and how its engine is. starts: of the engine so far."""

    state: State
    starts: int
    silent_seconds: float


Asked: TypeAlias = (
    Introduce
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
)
Answered: TypeAlias = (
    Introduce | Beat | Loaded | News | Failed | LoadedAdapters | EngineCounts | Seen | Heard
)


def encode(message: Asked | Answered) -> bytes:
    """A message as it is sealed."""
    return _ENCODER.encode(message)


def decode_asked(body: bytes) -> Asked:
    """What a front said. Raises: msgspec.DecodeError."""
    return _ASKED.decode(body)


def decode_answered(body: bytes) -> Answered:
    """What a member said. Raises: msgspec.DecodeError."""
    return _ANSWERED.decode(body)


def check_introduced(said: Asked | Answered, *, role: str, where: str) -> None:
    """Raise ConfigError where the other is not what it should be; both versions are named."""
    if not isinstance(said, Introduce) or (said.version, said.form) != (__version__, FORM):
        theirs = said.version if isinstance(said, Introduce) else "one that says nothing of itself"
        raise ConfigError(
            f"{where} runs Cutaway {theirs}, and this one is {__version__}. Install the same "
            "version on all hosts of a fleet."
        )
    if said.role != role:
        raise ConfigError(f"{where} is a {said.role}; it must be a {role}.")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=to_plain)
_ASKED = msgspec.msgpack.Decoder(Asked, dec_hook=from_plain)
_ANSWERED = msgspec.msgpack.Decoder(Answered, dec_hook=from_plain)
