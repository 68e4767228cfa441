"""The port of an address that somebody wrote: one range, and one way to say it."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

MAX_PORT: Final = 65535


def check_port(port: int, where: str, *, takes_any: bool = False) -> int:
    """The same port.   takes_any: 0 stands for a free one, as where something listens.

    Raises: ConfigError with the port and its range; where says in whose words.
    """
    least = 0 if takes_any else 1
    if not least <= port <= MAX_PORT:
        any_one = " 0 takes a free one." if takes_any else ""
        raise ConfigError(f"{where} is {port}; it must be from {least} to {MAX_PORT}.{any_one}")
    return port


def is_port(text: str) -> bool:
    """Whether a text is written as a port is, in its range or not: few digits and nothing else."""
    return text.isascii() and text.isdecimal() and len(text) <= 19


def split_url(url: str, name: str, *, schemes: tuple[str, ...], example: str) -> SplitResult:
    """The parts of a URL that is to be asked. Raises: ConfigError naming the setting."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets without an address of IPv6
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in schemes or not parts.hostname:
        raise ConfigError(f"{name} is {quote(url)}; it must be a URL, as {example}.")
    _, colon, port = parts.netloc.rpartition("@")[2].rpartition(":")
    if colon and port and not port.endswith("]"):
        if not is_port(port):
            raise ConfigError(f"{name} is {quote(url)}; its port must be a number.")
        check_port(int(port), f"the port of {name}")
    return parts
