"""The key that hosts of one fleet share, and the addresses at which they meet.

It is read from a file or the environment and from nowhere else: what a command line holds, every
user of a machine can read.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.host.ports import check_port, is_port

VARIABLE: Final = "CUTAWAY_LINK_KEY"
MIN_CHARS: Final = 32  # 128 bits in hexadecimal: what is heard of a handshake gives no key away
_SCHEME: Final = "tcp://"
_MAKE: Final = "Make one with `openssl rand -hex 32 > link.key` and give every host the same."


@dataclass(frozen=True)
class LinkAddress:
    """Where a host listens for a link. port: 0 takes a free one, where it listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, takes_any: bool = False) -> LinkAddress:
        """An address written as tcp://HOST:PORT, or tcp://[V6]:PORT.

        takes_any: its port may be 0, as where a host listens. Raises: ConfigError.
        """
        host, colon, port = text.removeprefix(_SCHEME).rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        is_sound = text.startswith(_SCHEME) and colon and host and "/" not in host
        if not (is_sound and is_port(port)):
            raise ConfigError(
                f"the address of a link is {quote(text)}; it must be tcp://HOST:PORT, as in "
                "tcp://10.0.0.2:7070."
            )
        where = f"the port of {quote(text)}, the address of a link,"
        return cls(host, check_port(int(port), where, takes_any=takes_any))

    def __str__(self) -> str:
        """The same in writing."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEME}{host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """Whether the whole internet could reach it."""
        try:
            return ipaddress.ip_address(self.host).is_global
        except ValueError:
            return False  # a name; the system says what it stands for


class LinkKey:
    """A shared key, from which each use has a key of its own. It is never shown."""

    def __init__(self, text: str) -> None:
        self._secret = hashlib.sha256(text.encode()).digest()

    def derive(self, use: str, *parts: bytes) -> bytes:
        """32 bytes for one use; others tell nothing of it. parts: of a length that use fixes."""
        return hmac.digest(self._secret, b"\0".join((use.encode(), b"".join(parts))), "sha256")

    @property
    def page_secret(self) -> bytes:
        """Of which all engines of a fleet make keys of pages: 16 bytes."""
        return self.derive("keys of pages")[:16]


def read_link_key(
    file: Path | None,
    *,
    where: str,
    flag: str = "--link-key-file",
    environment: Mapping[str, str] = os.environ,
) -> LinkKey:
    """The key of a file, else that of the environment.

    where: what is to be linked, and flag: what names the file; for messages.
    Raises: ConfigError, also where there is none; it never shows one.
    """
    if file is None:
        text, source = environment.get(VARIABLE, "").strip(), VARIABLE
        if not text:
            raise ConfigError(
                f"{where} needs a key, and neither {flag} nor {VARIABLE} gives one. {_MAKE}"
            )
    else:
        source = str(file)
        try:
            text = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise ConfigError(f"{file} cannot be read as the key of links: {reason}.") from None
    if not (len(text) >= MIN_CHARS and text.isascii() and text.isprintable() and " " not in text):
        raise ConfigError(
            f"{source} holds no key of links: it must be one word of at least {MIN_CHARS} "
            f"printable ASCII characters. {_MAKE}"
        )
    return LinkKey(text)
