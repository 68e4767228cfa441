"""A rank that follows: it loads its part of a model and computes what rank 0 computes.

Started by start_ranks.py. When its leader is gone, for whatever reason, it ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from cutaway.blocks.weighed import stored_bytes
from cutaway.cache.pool import Pool
from cutaway.core.errors import ConfigError, CutawayError
from cutaway.core.layout import group_layers
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.native import is_recorded
from cutaway.engine.ranks.rank_messages import (
    AtStage,
    CannotFollow,
    ClearPages,
    ClosePages,
    CopyPages,
    JoinRanks,
    OpenPages,
    PreparePages,
    RunStep,
    TurnAway,
    receive_order,
    send,
)
from cutaway.engine.runner import Runner, runner_of
from cutaway.host.faults import is_out_of_memory
from cutaway.host.sealed_socket import ByteSocket
from cutaway.parallel.rank_grid import RankGrid
from cutaway.parallel.rank_group import RankGroup, join_processes
from cutaway.weights.find.find import find


def follow(link: ByteSocket, model: LoadedModel, grid: RankGrid, config: EngineConfig) -> None:
    """Obey until the leader is gone. Raises: what a step raises; nothing can go on after that."""
    runners: dict[int, Runner] = {}
    while True:
        order = receive_order(link)
        match order:
            case None:
                return
            case RunStep(number, numbers, is_tapped):
                sink = grid.follow_taps(is_tapped=is_tapped)
                with grid.step(), _room_for(f"a step of {len(numbers.token_ids)} tokens"):
                    runners[number].forward(numbers, sink)
            case OpenPages(number):
                with _room_for(f"{sum(order.num_pages)} pages of {order.page_size} tokens"):
                    runners[number] = _runner(model, config, order)
                send(link, AtStage("opened", runners[number].pool.num_bytes))
            case PreparePages(number):
                with grid.step():
                    runners[number].prepare()
            case ClearPages(number, pages):
                runners[number].clear(pages)
            case CopyPages(number, copies):
                runners[number].copy(copies)
            case ClosePages(number):
                del runners[number]
            case JoinRanks() | TurnAway():
                raise AssertionError("a rank joins once")


@contextmanager
def _room_for(what: str) -> Generator[None]:
    """Raise ConfigError where this rank's memory does not suffice for something."""
    try:
        yield
    except Exception as fault:
        if not is_out_of_memory(fault):
            raise
        raise ConfigError(f"it has no memory for {what}") from fault


def _runner(model: LoadedModel, config: EngineConfig, wanted: OpenPages) -> Runner:
    pool = Pool(
        group_layers(model.transformer.cache_specs),
        num_pages=wanted.num_pages,
        page_size=wanted.page_size,
        dtype=model.cache_dtype,
        device=model.device,
        is_native=is_recorded(model),
        held=model.transformer.own_layers,
    )
    return runner_of(
        model,
        pool,
        config=replace(config.on(model.device.type), graphs=wanted.graphs),
        max_length=wanted.max_length,
        max_tokens=wanted.max_tokens,
        keeps=wanted.keeps,
        is_plain=wanted.is_plain,
    )


def take_part(
    link: ByteSocket, wanted: JoinRanks, *, model: str, meet: Callable[[EngineConfig], RankGrid]
) -> None:
    """Meet the others, load, and obey until the leader is gone; what it cannot do it says.

    model: by what it is found on this host.   meet: joins them.
    Raises: what a step raises, unless that is because the leader is gone.
    """
    try:
        send(link, AtStage("started"))
        config = EngineConfig.of(wanted.settings)
        grid = meet(config)
        send(link, AtStage("met"))
        grid.try_out()
        loaded = load_model(find(model), config, grid=grid)
        send(link, AtStage("loaded", stored_bytes(loaded.transformer)))
        follow(link, loaded, grid, config)
    except CutawayError as error:
        with suppress(OSError):
            send(link, CannotFollow(str(error)))
    except (OSError, RuntimeError):
        if link.fileno() >= 0 and _is_open(link):
            raise  # not because the leader is gone


def main() -> None:
    """The process: its link and its life line are its only arguments."""
    link, line = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    die_with(line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # when to end is the leader's to say
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        wanted = receive_order(link)
    except OSError:
        return
    if wanted is None:
        return
    assert isinstance(wanted, JoinRanks), "the first order is to join"

    def meet(config: EngineConfig) -> RankGrid:
        def join(name: str, rank: int, size: int) -> RankGroup:
            return join_processes(
                Path(wanted.folder),
                rank,
                size,
                seconds=wanted.seconds,
                device=torch.device(config.device),
                name=name,
            )

        return RankGrid.join(wanted.rank, tensor=config.tensor, pipeline=config.pipeline, join=join)

    take_part(link, wanted, model=wanted.model, meet=meet)


def _is_open(link: ByteSocket) -> bool:
    """Whether the leader is still there: it says nothing while a step runs."""
    plain = socket.socket(fileno=os.dup(link.fileno()))
    try:
        plain.setblocking(False)
        return bool(plain.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        plain.close()


def die_with(line: socket.socket) -> None:
    """Have the system kill this process when the other end of a line is gone, even a stopped one.

    Where the system cannot, the end of the link does, once this process reads it.
    """
    if sys.platform != "linux":
        return
    import fcntl

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()
