"""Who asks: API keys from a file, compared in constant time, each with an owner's name.

Keys are kept as digests; nothing here logs or shows one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from cutaway.core.errors import ConfigError
from cutaway.server.entry.browsers import Browsers
from cutaway.server.entry.owner import ANYBODY, Owner

MIN_KEY_CHARS = 16  # 80 bits where drawn from base32: beyond guessing over a network


class Keys:
    """The keys that are accepted; without any, everybody is."""

    def __init__(self, keys: Iterable[tuple[str, str]] = ()) -> None:
        self._named = tuple((_digest(key), name) for name, key in keys)
        self.browsers = Browsers()
        # Drawn anew in each process, so that salts tell nothing about keys.
        self.salt(os.urandom(32))

    def salt(self, secret: bytes) -> None:
        """Make owners' salts of a secret, so that their pages are found where it is the same."""
        self._owners = tuple(
            (digest, Owner(name, hmac.digest(secret, name.encode(), "sha256")))
            for digest, name in self._named
        )

    def __bool__(self) -> bool:
        return bool(self._owners)

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> Owner | None:
        """Who sent these headers; None when the key is missing or wrong.

        Every key is compared, whichever fits, so that time tells nothing.
        """
        if not self._owners:
            return ANYBODY
        digest = hashlib.sha256(_sent_key(headers)).digest()
        found: Owner | None = None
        for known, owner in self._owners:
            if hmac.compare_digest(known, digest):
                found = owner
        return found or self.browsers.owner(headers)


def read_keys(path: Path) -> Keys:
    """Keys of a file: one per line, or a name, a blank and the key; # begins a comment.

    Raises: ConfigError naming file and line, never a key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read as a file of API keys: {reason}.") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, key = (f"key-{number}", words[0]) if len(words) == 1 else (words[0], words[-1])
        _check(path, number, words, key)
        if name in keys or key in keys.values():
            raise ConfigError(f"{path}, line {number}: its name or key stands above already.")
        keys[name] = key
    if not keys:
        raise ConfigError(
            f"{path} has no API key; write one per line, for instance what `openssl rand -hex 32` "
            "prints."
        )
    return Keys(keys.items())


def _check(path: Path, number: int, words: list[str], key: str) -> None:
    if len(words) > 2:
        raise ConfigError(
            f"{path}, line {number} has {len(words)} words; it must be a key, or a name and a key."
        )
    if not (key.isascii() and key.isprintable() and len(key) >= MIN_KEY_CHARS):
        raise ConfigError(
            f"{path}, line {number}: a key must have at least {MIN_KEY_CHARS} printable ASCII "
            "characters; `openssl rand -hex 32` prints a good one."
        )
    if len(words) == 2 and not (words[0].isascii() and len(words[0]) <= 64):
        raise ConfigError(
            f"{path}, line {number}: a name must be ASCII and have at most 64 characters."
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _sent_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key in Authorization: Bearer, as OpenAI has it, or in x-api-key, as Anthropic has it."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
        if name == b"x-api-key":
            return value.strip()
    return b""
