"""Followers of a divided model on other hosts: they come by themselves, and prove a key.

Each is `cutaway rank` there, which comes again when a group has ended. What is refused, and why, it
is told.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, Queue
from typing import Final

from cutaway.core.errors import ConfigError
from cutaway.core.version import __version__
from cutaway.engine.ranks.rank_messages import (
    AskToJoin,
    JoinRanks,
    TurnAway,
    receive_reply,
    send,
)
from cutaway.host.link_key import LinkAddress, LinkKey
from cutaway.host.sealed_link import HANDSHAKE_SECONDS, LinkLostError, listen_for_links
from cutaway.host.sealed_socket import SealedSocket, grant_socket

MOST_AT_ONCE: Final = 16  # that have not proved the key yet
_GIB: Final = 2**30


class FarFollowers:
    """Followers that have joined, in the order of ranks from 1.

    files: a digest of the model's, which theirs must have.
    rank_bytes: that the part of each takes, about.
    """

    def __init__(self, *, size: int, files: str, rank_bytes: int) -> None:
        self.links: list[SealedSocket] = []
        self._size, self._files, self._rank_bytes = size, files, rank_bytes

    def gather(self, address: LinkAddress, key: LinkKey, seconds: float) -> None:
        """Listen until each rank has joined. Raises: ConfigError naming those that have not."""
        came: Queue[SealedSocket] = Queue()
        joined: dict[int, SealedSocket] = {}
        end = time.monotonic() + seconds
        with listen_for_links(address) as listener:
            bound = LinkAddress(address.host, listener.getsockname()[1])
            whom = "rank 1" if self._size == 2 else f"ranks 1 to {self._size - 1}"
            _note(f"waiting at {bound} for {whom} to come from elsewhere.")
            threading.Thread(
                target=_grant_all, args=(listener, key, came), name="cutaway-joining", daemon=True
            ).start()
            try:
                while len(joined) < self._size - 1:
                    try:
                        link = came.get(timeout=max(0.0, end - time.monotonic()))
                    except Empty:
                        raise ConfigError(self._tell_missing(joined, bound, seconds)) from None
                    self._take_in(link, joined)
            except BaseException:
                for link in joined.values():
                    link.close()
                raise
            finally:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # who accepts is woken
        while not came.empty():
            came.get().close()  # one too many: it comes again and finds nobody
        self.links = [joined[rank] for rank in sorted(joined)]

    def _tell_missing(
        self, joined: dict[int, SealedSocket], bound: LinkAddress, seconds: float
    ) -> str:
        missing = [str(rank) for rank in range(1, self._size) if rank not in joined]
        words = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
        return (
            f"{words} of {self._size} did not join at {bound} within {seconds:g} s. Start each on "
            f"its host: cutaway rank MODEL --join {bound} --rank {missing[0]} --link-key-file FILE."
        )

    def _take_in(self, link: SealedSocket, joined: dict[int, SealedSocket]) -> None:
        """Let one in, or tell it why not; one that says nothing is dropped."""
        link.settimeout(HANDSHAKE_SECONDS)
        try:
            asked = receive_reply(link)
        except (OSError, ValueError):
            asked = None
        if not isinstance(asked, AskToJoin):
            link.close()
            return
        why = self._refuse(asked, joined)
        if why is None:
            joined[asked.rank] = link
            _note(f"rank {asked.rank} of {self._size} has joined from {link.where}.")
            return
        _note(f"rank {asked.rank} of {link.where} is turned away: {why}")
        with suppress(OSError):
            send(link, TurnAway(why))
        link.close()

    def _refuse(self, asked: AskToJoin, joined: dict[int, SealedSocket]) -> str | None:
        """Why somebody may not join; None where it may."""
        if asked.version != __version__:
            return (
                f"it runs Cutaway {asked.version} and rank 0 {__version__}. Install the same on "
                "all hosts."
            )
        if not 1 <= asked.rank < self._size:
            return (
                f"there are {self._size} ranks, and those that join are 1 to {self._size - 1}. "
                "Give another --rank, or start rank 0 with more."
            )
        if asked.rank in joined:
            return f"rank {asked.rank} has joined from {joined[asked.rank].where} already."
        if asked.files != self._files:
            return (
                "its files of the model are not those of rank 0. Give it the same files, by "
                "MODEL or --model."
            )
        if asked.free is not None and asked.free < self._rank_bytes:
            return (
                f"its part of the weights takes about {self._rank_bytes / _GIB:.1f} GiB, and "
                f"{asked.free / _GIB:.1f} GiB are free there. Take more ranks, or a smaller model."
            )
        return None

    def tell(self, orders: Sequence[JoinRanks]) -> None:
        """Give each its first order; who is gone is missed at the next stage."""
        for link, order in zip(self.links, orders, strict=True):
            link.settimeout(None)
            with suppress(OSError):
                send(link, order)

    def end(self) -> None:
        """They end with their links."""
        for link in self.links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()


def _grant_all(listener: socket.socket, key: LinkKey, came: Queue[SealedSocket]) -> None:
    """Hand over whoever proves the key; strangers hold up nobody, for each has a thread."""
    places = threading.BoundedSemaphore(MOST_AT_ONCE)

    def grant(plain: socket.socket) -> None:
        try:
            came.put(grant_socket(plain, key))
        except LinkLostError:
            return
        finally:
            places.release()

    with suppress(OSError, ValueError):
        while True:
            plain, _ = listener.accept()
            if not places.acquire(blocking=False):
                plain.close()
                continue
            threading.Thread(target=grant, args=(plain,), name="cutaway-join", daemon=True).start()


def _note(text: str) -> None:
    print(f"cutaway: {text}", file=sys.stderr, flush=True)
