"""Keeps one rank of a divided model on this host: it joins its leader again and again.

Free of torch: the rank is a process of its own, which ends with its group and with this one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cutaway.core.errors import ConfigError
from cutaway.host.link_key import LinkAddress

REFUSED, ABSENT = 3, 4  # exit codes of a rank that could not join, and should not or may try again
FIRST_PAUSE: Final = 0.25  # between two tries to join; then twice as long each time
_LOOK_SECONDS: Final = 0.05
_END_SECONDS: Final = 2.0  # for a rank to end once its life line is cut


def keep_rank(
    model: str,
    address: LinkAddress,
    rank: int,
    *,
    key_file: str = "",
    most_pause: float = 5.0,
    ended: threading.Event,
    tell: Callable[[str], None] = print,
) -> None:
    """Join, follow, and join again when the group has ended, until `ended` is set.

    model: by what the engine finds it here, without a name that could be fetched.
    key_file: of links; none takes that of the environment.
    Raises: ConfigError where the leader does not take this rank, now or later.
    """
    pause, told = FIRST_PAUSE, ""
    while not ended.is_set():
        code, words = _live(model, address, rank, key_file, ended)
        if ended.is_set():
            return
        if code == REFUSED:
            raise ConfigError(words or f"rank {rank} may not join at {address}.")
        if code == ABSENT:
            if words != told:  # said once, however often it is tried
                tell(f"{words} It is tried again until it is there.")
            told = words
        else:
            why = "" if code == 0 else f" with exit code {code}"
            tell(f"rank {rank} has ended{why}; it joins {address} again.")
            pause, told = FIRST_PAUSE if code == 0 else pause, ""
        ended.wait(pause)
        pause = min(most_pause, 2 * pause)


def _live(
    model: str, address: LinkAddress, rank: int, key_file: str, ended: threading.Event
) -> tuple[int, str]:
    """One life of the rank: its exit code, and what it said of it."""
    line, its_line = socket.socketpair()
    with line:
        with its_line:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "cutaway.engine.ranks.far_follower"),
                    *(str(address), str(rank), model, key_file, str(its_line.fileno())),
                ],
                pass_fds=(its_line.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                env=dict(os.environ),
            )
        with process:
            while process.poll() is None and not ended.wait(_LOOK_SECONDS):
                pass
            line.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            if process.poll() is None:
                process.kill()
            assert process.stdout is not None, "it was asked for"
            words = process.stdout.read().strip()
            return process.wait(), words
