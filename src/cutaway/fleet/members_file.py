"""A file of addresses of engines elsewhere, one a line; whoever changes it changes the fleet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cutaway.core.errors import ConfigError
from cutaway.host.link_key import LinkAddress


class MembersFile:
    """Addresses in a file beside those that always belong.

    Write it whole, by renaming another. A file that is gone or cannot be read changes nothing.
    """

    def __init__(self, path: Path, always: tuple[str, ...] = ()) -> None:
        self._path, self._always = path, always
        self._stamp: tuple[int, int, int] | None = None
        self._found: tuple[str, ...] = ()
        self._told = ""

    def read(self) -> tuple[str, ...]:
        """The addresses now. Raises: ConfigError the first time, where there are none."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                self._found = _parse(self._path)
                self._stamp = stamp
        except (OSError, ConfigError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            why = f"{self._path} names no members: {reason}."
            if self._stamp is None:
                raise ConfigError(why) from None
            if why != self._told:
                self._told = why
                print(f"cutaway: {why} Members stay as they are.", file=sys.stderr, flush=True)
        return tuple(dict.fromkeys((*self._always, *self._found)))


def _parse(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    found = tuple(line for line in lines if line)
    for each in found:
        LinkAddress.parse(each)
    if not found:
        raise ConfigError("it is empty; write one tcp://HOST:PORT per line")
    return found
