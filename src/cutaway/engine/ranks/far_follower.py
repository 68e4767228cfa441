"""A rank of another host: it asks its leader to be let in, follows it, and ends with it.

Started by rank_host.py, which starts it again. What it prints on stdout is why it could not join.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

from cutaway.core.errors import ConfigError
from cutaway.core.version import __version__
from cutaway.engine.config import EngineConfig
from cutaway.engine.ranks.follower import die_with, take_part
from cutaway.engine.ranks.rank_host import ABSENT, REFUSED
from cutaway.engine.ranks.rank_messages import AskToJoin, JoinRanks, TurnAway, receive_order, send
from cutaway.engine.ranks.start_ranks import path_of
from cutaway.host.file_digest import digest_files
from cutaway.host.free_memory import free_memory
from cutaway.host.link_key import LinkAddress, read_link_key
from cutaway.host.sealed_link import LinkLostError
from cutaway.host.sealed_socket import SealedSocket, ask_for_socket
from cutaway.parallel.rank_grid import RankGrid
from cutaway.parallel.rank_group import RankGroup, find_meeting, join_hosts


def main() -> None:
    """The process: the leader's address, its rank, model, key file and life line are arguments."""
    where, rank, model, key_file, line = sys.argv[1:6]
    life_line = socket.socket(fileno=int(line))
    die_with(life_line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # when to end is for who started it to say
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    address = LinkAddress.parse(where)
    try:
        key = read_link_key(Path(key_file) if key_file else None, where=f"to join {address}")
        link = ask_for_socket(address, key)
    except ConfigError as error:
        _leave(REFUSED, str(error))
    except LinkLostError as error:
        _leave(ABSENT, f"{error}.")
    except OSError as error:
        number = error.errno or 0  # negative where a name is not known
        reason = os.strerror(number) if number > 0 else str(error)
        _leave(ABSENT, f"{address} cannot be reached: {reason}.")
    wanted = _join(link, int(rank), model)
    _end_with(link)

    def meet(config: EngineConfig) -> RankGrid:
        assert wanted.meeting is not None, "ranks of several hosts are told where they meet"
        store = find_meeting(*wanted.meeting, seconds=wanted.seconds)

        def join(name: str, rank: int, size: int) -> RankGroup:
            host, seconds = link.own_host, wanted.seconds
            return join_hosts(store, rank, size, host=host, seconds=seconds, name=name)

        return RankGrid.join(wanted.rank, tensor=config.tensor, pipeline=config.pipeline, join=join)

    take_part(link, wanted, model=model, meet=meet)


def _join(link: SealedSocket, rank: int, model: str) -> JoinRanks:
    try:
        files = digest_files(path_of(model))
        send(link, AskToJoin(rank, __version__, files, free_memory()))
        order = receive_order(link)
    except OSError:
        order = None
    if isinstance(order, TurnAway):
        _leave(REFUSED, f"{link.where} turns this rank away: {order.why}")
    if not isinstance(order, JoinRanks):
        _leave(ABSENT, f"{link.where} has not begun: another rank was missing.")
    return order


def _end_with(link: SealedSocket) -> None:
    """End this process with its link, even where it waits in a gather for somebody else."""
    if not hasattr(select, "POLLRDHUP"):
        return  # it ends when it reads the link next
    watched = select.poll()
    watched.register(link.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)

    def watch() -> None:
        watched.poll()
        os._exit(0)

    threading.Thread(target=watch, name="cutaway-leader", daemon=True).start()


def _leave(code: int, why: str) -> NoReturn:
    print(why, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()
