"""A socket of two hosts that share a key, as sealed_link has it, for threads that wait.

Bytes go in and come out as over a plain socket; what somebody on the way changes, leaves out, adds
or plays again ends it. Nothing is hidden from who can listen on the way.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from contextlib import suppress
from typing import Final, Protocol

from cutaway.core.errors import ConfigError
from cutaway.host.link_key import LinkAddress, LinkKey
from cutaway.host.sealed_link import (
    HANDSHAKE_SECONDS,
    MOST_BYTES,
    SAME_KEY,
    SEAL_BYTES,
    LinkLostError,
    bound_silence,
    seal_of,
)

_MAGIC: Final = b"cutaway rank 1\r\n"  # 16 bytes; the number is that of this handshake
_NONCE: Final = 32
_YES, _NO = b"y", b"n"
_LENGTH: Final = struct.Struct("<I")
# To a host that is gone without a word: 5 s of silence, then three questions of 2 s.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class ByteSocket(Protocol):
    """What messages between ranks need of a socket."""

    def fileno(self) -> int:
        """Its number; -1 once it is closed."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Write all of it. Raises: OSError."""
        ...

    def recv(self, count: int, /) -> bytes:
        """At most so many bytes; none at the end. Raises: OSError."""
        ...

    def settimeout(self, seconds: float | None, /) -> None:
        """How long to wait for the other side."""
        ...

    def shutdown(self, how: int, /) -> None:
        """End it for both sides. Raises: OSError."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class SealedSocket:
    """A socket after its handshake. where: the other side.   own_host: this one, as seen there."""

    def __init__(self, plain: socket.socket, *, ours: bytes, theirs: bytes) -> None:
        self.plain = plain
        self.where = "{}:{}".format(*plain.getpeername()[:2])
        self.own_host: str = plain.getsockname()[0]
        self._ours, self._theirs = ours, theirs
        self._num_sent = self._num_read = 0
        self._left = b""

    def fileno(self) -> int:
        """Its number; -1 once it is closed."""
        return self.plain.fileno()

    def settimeout(self, seconds: float | None, /) -> None:
        """How long to wait for the other side."""
        self.plain.settimeout(seconds)

    def shutdown(self, how: int, /) -> None:
        """End it for both sides. Raises: OSError."""
        self.plain.shutdown(how)

    def close(self) -> None:
        """Let it go."""
        self.plain.close()

    def sendall(self, data: bytes, /) -> None:
        """Write it under a seal of its own. Raises: OSError."""
        head = _LENGTH.pack(len(data))
        seal = seal_of(self._ours, self._num_sent, head, data)
        self._num_sent += 1
        self.plain.sendall(b"".join((head, data, seal)))

    def recv(self, count: int, /) -> bytes:
        """At most so many bytes; none at the end, or once anything was changed on the way.

        Raises: TimeoutError.
        """
        if not self._left:
            self._left = self._read()
        part, self._left = self._left[:count], self._left[count:]
        return part

    def _read(self) -> bytes:
        try:
            head = read_exactly(self.plain, _LENGTH.size)
            (length,) = _LENGTH.unpack(head)
            if length > MOST_BYTES:
                return b""
            body = read_exactly(self.plain, length)
            seal = read_exactly(self.plain, SEAL_BYTES)
        except TimeoutError:
            raise
        except OSError:
            return b""
        if not hmac.compare_digest(seal, seal_of(self._theirs, self._num_read, head, body)):
            with suppress(OSError):
                self.plain.shutdown(socket.SHUT_RDWR)
            return b""
        self._num_read += 1
        return body


def read_exactly(plain: socket.socket, count: int) -> bytes:
    """So many bytes. Raises: OSError where the other side ends before."""
    parts: list[bytes] = []
    while count:
        part = plain.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the connection has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def ask_for_socket(address: LinkAddress, key: LinkKey) -> SealedSocket:
    """Connect to a host that listens for ranks, and prove the key; the other proves it too.

    Raises: OSError where nobody listens; ConfigError where the other has another key, or is
    something else; LinkLostError where it ends in the midst.
    """
    plain = socket.create_connection((address.host, address.port), timeout=HANDSHAKE_SECONDS)
    try:
        _bound(plain)
        own = os.urandom(_NONCE)
        plain.sendall(_MAGIC + own)
        greeting = read_exactly(plain, len(_MAGIC) + _NONCE)
        if not greeting.startswith(_MAGIC):
            raise ConfigError(
                f"{address} is no leader of ranks of this version of Cutaway. Install the same on "
                "all hosts, and give the address of its --rank-listen."
            )
        nonces = own + greeting[len(_MAGIC) :]
        plain.sendall(key.derive("proof of a rank", nonces))
        if read_exactly(plain, 1) != _YES:
            raise ConfigError(f"{address} has another key of links. {SAME_KEY}")
        proof = read_exactly(plain, _NONCE)
        if not hmac.compare_digest(proof, key.derive("proof of a leader", nonces)):
            raise ConfigError(f"{address} does not prove that it has the key of links.")
    except BaseException as error:
        plain.close()
        if isinstance(error, OSError):
            raise LinkLostError(
                f"{address} ended the connection before it had proved the key of links"
            ) from None
        raise
    plain.settimeout(None)
    return SealedSocket(
        plain,
        ours=key.derive("said by a rank", nonces),
        theirs=key.derive("said by a leader", nonces),
    )


def grant_socket(plain: socket.socket, key: LinkKey) -> SealedSocket:
    """The listening side of ask_for_socket. The one who asks proves first: a scan learns nothing.

    Raises: LinkLostError for whoever does not prove the key in time; it is closed.
    """
    try:
        plain.settimeout(HANDSHAKE_SECONDS)
        _bound(plain)
        greeting = read_exactly(plain, len(_MAGIC) + _NONCE)
        if not greeting.startswith(_MAGIC):
            raise LinkLostError("it is no rank of this version of Cutaway")
        own = os.urandom(_NONCE)
        plain.sendall(_MAGIC + own)
        nonces = greeting[len(_MAGIC) :] + own
        proof = read_exactly(plain, _NONCE)
        if not hmac.compare_digest(proof, key.derive("proof of a rank", nonces)):
            plain.sendall(_NO)
            raise LinkLostError("it has another key")
        plain.sendall(_YES + key.derive("proof of a leader", nonces))
    except OSError:
        plain.close()
        raise LinkLostError("it did not prove the key") from None
    except LinkLostError:
        plain.close()
        raise
    plain.settimeout(None)
    return SealedSocket(
        plain,
        ours=key.derive("said by a leader", nonces),
        theirs=key.derive("said by a rank", nonces),
    )


def _bound(plain: socket.socket) -> None:
    bound_silence(plain)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
