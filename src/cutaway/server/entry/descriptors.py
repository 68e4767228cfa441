"""File descriptors of a server: how many it may have, and what it does when they run out."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from cutaway.server.server_config import ServerConfig
from cutaway.server.watching import log

MOST_DESCRIPTORS = 65_536  # what the unit file of deploy/ gives as well
# For what is no connection: files of the model, the engine's process and its next start, logs.
KEPT_FOR_OTHERS = 64
QUIET_SECONDS = 60  # between two lines about the same want

_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit() -> int:
    """Raise this process's soft limit of descriptors to the hard one, within reason. Returns it."""
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):  # macOS has a lower one that it does not tell
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft_limit()


def soft_limit() -> int:
    """Descriptors that this process may have; MOST_DESCRIPTORS where nothing bounds them."""
    if os.name != "posix":
        return MOST_DESCRIPTORS
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def fit_to_descriptors(config: ServerConfig, num_descriptors: int) -> ServerConfig:
    """The same settings with no more open requests than there are descriptors for."""
    most = max(1, num_descriptors - KEPT_FOR_OTHERS)
    return replace(config, max_open_requests=min(config.max_open_requests, most))


class Listener(socket.socket):
    """A socket that listens and knows what to do when no descriptor is left for who comes.

    asyncio would try again as often as its backlog is long, log a line each time, and listen to
    nobody for a second. Here idle connections are closed for newcomers; where none is idle a
    newcomer is let go at once; and a line in a minute tells of it.

    make_room: closes idle connections and returns how many.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(fileno=listening.detach())
        self.make_room: Callable[[], int] = lambda: 0
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._told = -float("inf")

    def accept(self) -> tuple[socket.socket, object]:
        """As a socket's. Raises: BlockingIOError too when there is no descriptor to take one by."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _SCARCE:
                raise
            self._tell(error, closed=self.make_room() or self._let_one_go())
            raise BlockingIOError from None

    def close(self) -> None:
        """Stop listening."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def _let_one_go(self) -> int:
        """Take a newcomer by the descriptor that is kept for this, and close it."""
        if self._spare < 0:
            return 0
        os.close(self._spare)
        self._spare = -1
        num_closed = 0
        with suppress(OSError):
            super().accept()[0].close()
            num_closed = 1
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)
        return num_closed

    def _tell(self, error: OSError, *, closed: int) -> None:
        now = time.monotonic()
        if now - self._told < QUIET_SECONDS:
            return
        self._told = now
        log.event(
            "out_of_descriptors",
            level=logging.WARNING,
            reason=error.strerror,
            limit=soft_limit(),
            closed=closed,
        )
