"""Browsers that came by a one-time link: the page has no API key, it has a cookie instead.

Links and cookies live as long as the process, are kept as digests and are never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable

from cutaway.server.entry.owner import Owner

COOKIE = "cutaway_browser"
_NUM_BYTES = 32  # nobody guesses 256 bits


class Browsers:
    """Links that were given out and browsers that came by them; all are one owner."""

    def __init__(self) -> None:
        self._links: set[bytes] = set()
        self._cookies: list[bytes] = []
        self._owner = Owner("page", os.urandom(32))

    def new_link(self) -> str:
        """The query of a link that lets in the first browser that opens it."""
        once = secrets.token_urlsafe(_NUM_BYTES)
        self._links.add(_digest(once.encode()))
        return f"?once={once}"

    def let_in(self, once: str) -> str | None:
        """A Set-Cookie header for a link's browser; None when the link is wrong or was used."""
        digest = _digest(once.encode())
        if digest not in self._links:  # digests of guesses tell nothing by their time
            return None
        self._links.remove(digest)
        cookie = secrets.token_urlsafe(_NUM_BYTES)
        self._cookies.append(_digest(cookie.encode()))
        return f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict"

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> Owner | None:
        """Who sends this cookie; None when it is missing or wrong."""
        found = None
        for sent in _sent_cookies(headers):
            digest = _digest(sent)
            for known in self._cookies:
                if hmac.compare_digest(known, digest):
                    found = self._owner
        return found


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _sent_cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The values of our cookie. Other servers of this host set cookies too: theirs are left."""
    parts = [part for name, value in headers if name == b"cookie" for part in value.split(b";")]
    pairs = [part.strip().partition(b"=") for part in parts]
    return [value for name, _, value in pairs if name == COOKIE.encode()]
