"""Settings of one server, each with the reason of its default. Free of the HTTP stack."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.host.ports import check_port

Views = Literal["off", "local", "full"]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

MAX_HEADERS = 100  # of one request; browsers send about 20
MAX_HEADER_BYTES = 32 * 1024  # request line and headers together; also Envoy's default at an edge
MAX_DEPTH = 64  # of nested lists and objects in a body
MAX_PROMPTS = 256  # of one completions request; lm-eval sends at most its batch size


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Where a server listens, whom it answers, and how long it waits.

    allowed_hosts:   names that may stand in Host; the loopback's own are always among them. Empty
                     on a public address allows all, since a key is asked for there.
    allowed_origins: web pages that may ask from a browser, besides the server's own.
    views:           whether answers can be looked into: never (off), where this machine alone
                     reaches the server (local), or always (full). Each key sees its own alone.
    Raises: ConfigError naming the setting, its value and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 2 * 1024 * 1024  # 128 K tokens of text are about 0.5 MB
    max_open_requests: int = 1024  # answers in the making; each holds a connection
    header_seconds: float = 10
    body_idle_seconds: float = 30
    body_seconds: float = 60
    send_seconds: float = 60  # a reader that takes nothing for so long is gone
    keep_alive_seconds: float = 15  # between comments in a silent stream; proxies cut at 30 to 60
    request_seconds: float = 600
    drain_seconds: float = 30  # what orchestrators grant by default
    views: Views = "local"  # answers are private: who reaches the server is not who asked

    def __post_init__(self) -> None:
        check_port(self.port, "port", takes_any=True)
        for name in (
            *("max_body_bytes", "max_open_requests", "header_seconds", "body_idle_seconds"),
            *("body_seconds", "send_seconds", "keep_alive_seconds", "request_seconds"),
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a number above 0.")
        if not self.drain_seconds >= 0:
            raise ConfigError(f"drain_seconds is {self.drain_seconds}; it must be at least 0.")
        if self.views not in get_args(Views):
            raise ConfigError(f"views is {quote(self.views)}; it must be off, local or full.")
        for origin in self.allowed_origins:
            _check_origin(origin)

    @property
    def has_views(self) -> bool:
        """Whether answers can be looked into."""
        return self.views == "full" or (self.views == "local" and not self.is_public)

    @property
    def is_public(self) -> bool:
        """Whether others than this machine can reach the address."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True  # a name may stand for anything


def host_in_url(host: str) -> str:
    """An address as URLs and Host headers write it."""
    return f"[{host}]" if ":" in host else host


# A scheme, a host and perhaps a port, as browsers write the origin of a page: also of extensions
# and of programs that show pages (app://obsidian.md, chrome-extension://abc, tauri://localhost).
_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(:(?P<port>[0-9]{1,19}))?"
)


def _check_origin(origin: str) -> None:
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        raise ConfigError(
            f"allowed_origins holds {quote(origin)}; an origin is scheme, host and port alone, "
            "in small "
            "letters, as in https://chat.example.org or app://obsidian.md. A star is not allowed."
        )
    if found["port"] is not None:
        check_port(int(found["port"]), f"the port of {quote(origin)} in allowed_origins")
