"""A connection of two hosts that share a key: each proves that it has it, and seals what it says.

Of a stranger 80 bytes are read, in a time that is bounded, and none of them is parsed. Later each
message has a seal of its own, made of its place in order: what somebody on the way changes, leaves
out, adds or plays again ends the connection. Nothing is hidden from who can listen on the way.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import struct
from contextlib import suppress
from typing import Final

from cutaway.core.errors import ConfigError
from cutaway.host.link_key import LinkAddress, LinkKey

HANDSHAKE_SECONDS: Final = 5.0
MOST_BYTES: Final = 2**30  # of one message: a look at an answer may be large
# That wait to be sent: a peer that reads nothing for so long is as good as gone.
MOST_UNSENT: Final = 256 * 2**20
_MAGIC: Final = b"cutaway link 1\r\n"  # 16 bytes; the number is that of this handshake
_NONCE: Final = 32
_YES, _NO = b"y", b"n"
SEAL_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")
_SILENT_MS: Final = 10_000  # until what was sent has to be acknowledged


class LinkLostError(Exception):
    """The connection has ended, or nothing that comes over it can be trusted any more."""


class SealedLink:
    """A connection after its handshake, as one of the two sees it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        ours: bytes,
        theirs: bytes,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._ours, self._theirs = ours, theirs
        self._num_sent = self._num_read = 0

    async def receive(self) -> bytes:
        """The next message. Raises: LinkLostError."""
        try:
            head = await self._reader.readexactly(_LENGTH.size)
            (length,) = _LENGTH.unpack(head)
            if length > MOST_BYTES:
                raise LinkLostError(f"a message of {length} bytes is announced")
            body = await self._reader.readexactly(length)
            seal = await self._reader.readexactly(SEAL_BYTES)
        except (OSError, asyncio.IncompleteReadError):
            raise LinkLostError("the connection has ended") from None
        if not hmac.compare_digest(seal, seal_of(self._theirs, self._num_read, head, body)):
            raise LinkLostError("a message was changed on its way")
        self._num_read += 1
        return body

    def send(self, body: bytes) -> None:
        """Say something; a peer that is gone, or has stopped to read, does not hear."""
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > MOST_UNSENT:
            self.cut()
            return
        head = _LENGTH.pack(len(body))
        seal = seal_of(self._ours, self._num_sent, head, body)
        self._num_sent += 1
        self._writer.write(b"".join((head, body, seal)))

    def cut(self) -> None:
        """End the connection at once; receive raises."""
        self._writer.transport.abort()

    async def close(self, seconds: float = 1.0) -> None:
        """End the connection once all is sent, or the time is up."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                self._writer.close()
                # Shielded: what is waited for belongs to the connection, and lasts until it is cut.
                await asyncio.shield(self._writer.wait_closed())
        self.cut()


async def ask_for_link(address: LinkAddress, key: LinkKey) -> SealedLink:
    """Connect to a host that listens, and prove the key; the other proves it too.

    Raises: OSError where nobody listens; ConfigError where the other has another key, or is
    something else; LinkLostError where it ends in the midst.
    """
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            _bound_silence(writer)
            own = os.urandom(_NONCE)
            writer.write(_MAGIC + own)
            other = await _read_greeting(reader, str(address))
            nonces = own + other
            writer.write(key.derive("proof of who asks", nonces))
            answer = await reader.readexactly(1)
            if answer != _YES:
                raise ConfigError(f"{address} has another key of links. {SAME_KEY}")
            proof = await reader.readexactly(_NONCE)
            if not hmac.compare_digest(proof, key.derive("proof of who listens", nonces)):
                raise ConfigError(f"{address} does not prove that it has the key of links.")
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, OSError | asyncio.IncompleteReadError | TimeoutError):
            raise LinkLostError(
                f"{address} ended the connection before it had proved the key of links"
            ) from None
        raise
    return SealedLink(
        reader,
        writer,
        ours=key.derive("said by who asks", nonces),
        theirs=key.derive("said by who listens", nonces),
    )


async def grant_link(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: LinkKey
) -> SealedLink:
    """The listening side of ask_for_link. The one who asks proves first: a scan learns nothing.

    Raises: LinkLostError for whoever does not prove the key in HANDSHAKE_SECONDS; it is cut.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            _bound_silence(writer)
            other = await _read_greeting(reader, "who asks")
            own = os.urandom(_NONCE)
            writer.write(_MAGIC + own)
            nonces = other + own
            proof = await reader.readexactly(_NONCE)
            if not hmac.compare_digest(proof, key.derive("proof of who asks", nonces)):
                writer.write(_NO)
                await writer.drain()
                writer.close()  # not cut: it is to read why
                raise LinkLostError("it has another key")
            writer.write(_YES + key.derive("proof of who listens", nonces))
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ConfigError):
        writer.transport.abort()
        raise LinkLostError("it did not prove the key") from None
    return SealedLink(
        reader,
        writer,
        ours=key.derive("said by who listens", nonces),
        theirs=key.derive("said by who asks", nonces),
    )


def listen_for_links(address: LinkAddress) -> socket.socket:
    """A socket that listens there. Raises: ConfigError where it cannot, or should not, be had."""
    if address.is_everywhere:
        raise ConfigError(
            f"the address to listen on is {address}, which the whole internet can reach, and what "
            "a link says is sealed and not hidden. Take one of a private network, also of a VPN."
        )
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=64)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ConfigError(
            f"cannot listen on {address}: {reason}. Take another port in --listen, or 0 for a free "
            "one."
        ) from None


SAME_KEY: Final = "Give both hosts the same file, or the same CUTAWAY_LINK_KEY."


async def _read_greeting(reader: asyncio.StreamReader, who: str) -> bytes:
    """The nonce of the other. Raises: ConfigError for what is no link of Cutaway's."""
    greeting = await reader.readexactly(len(_MAGIC) + _NONCE)
    if not greeting.startswith(_MAGIC):
        is_older = greeting.startswith(_MAGIC[:13])
        raise ConfigError(
            f"{who} speaks another version of Cutaway's links. Install the same on both hosts."
            if is_older
            else f"{who} is no link of Cutaway; `cutaway member` listens for those."
        )
    return greeting[len(_MAGIC) :]


def _bound_silence(writer: asyncio.StreamWriter) -> None:
    plain: socket.socket | None = writer.get_extra_info("socket")
    if plain is not None:
        bound_silence(plain)


def bound_silence(plain: socket.socket) -> None:
    """Let the system end a connection to a host that is gone without a word."""
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)


def seal_of(key: bytes, number: int, head: bytes, body: bytes) -> bytes:
    """What proves that a message is the so many-th that was said with a key."""
    made = hashlib.blake2b(
        head, digest_size=SEAL_BYTES, key=key, salt=number.to_bytes(16, "little")
    )
    made.update(body)
    return made.digest()
