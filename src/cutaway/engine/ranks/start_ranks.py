"""Starts the followers of a divided model, and ends them.

Those of this host are processes that meet in a folder of their own; no port is told to anybody.
Those of other hosts come by themselves (far_ranks.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from cutaway.core.errors import ConfigError
from cutaway.core.limits import MOST_PER_CORE
from cutaway.engine.config import EngineConfig
from cutaway.engine.ranks.far_ranks import FarFollowers
from cutaway.engine.ranks.leader import Ranks
from cutaway.engine.ranks.rank_messages import AtStage, CannotFollow, JoinRanks, receive_reply, send
from cutaway.host.file_digest import digest_files
from cutaway.host.link_key import LinkAddress, read_link_key
from cutaway.host.sealed_socket import ByteSocket, SealedSocket
from cutaway.host.stored_size import stored_bytes
from cutaway.kernels.hardware import chosen_threads
from cutaway.parallel.rank_grid import Join, RankGrid
from cutaway.parallel.rank_group import (
    LOOPBACK,
    RankGroup,
    join_hosts,
    join_processes,
    open_meeting,
)

STAGE_SECONDS = 60.0  # to import torch on a busy machine; then to meet
JOIN_SECONDS = 120.0  # for ranks of other hosts to come, which may be starting too
_END_SECONDS = 2.0  # for a follower to end by itself


class Followers:
    """Followers that have started, and what ends them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cutaway-ranks-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.links: list[socket.socket] = []
        self._lines: list[socket.socket] = []  # whose end kills

    def add(self, threads: int) -> None:
        """One more follower."""
        (link, its_link), (line, its_line) = socket.socketpair(), socket.socketpair()
        self.links.append(link)
        self._lines.append(line)
        with its_link, its_line:
            self.processes.append(_spawn(its_link, its_line, threads))

    def end(self) -> None:
        """They end with their links, stopped ones with their life lines; else they are killed."""
        for each in (*self.links, *self._lines):
            each.close()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self.clear_folder()

    def clear_folder(self) -> None:
        """Once all have met nobody looks there: a group that is killed later leaves no file."""
        shutil.rmtree(self.folder, ignore_errors=True)


def threads_of_rank(size: int) -> int:
    """Threads of each rank: beside others one with all of them waits for cores that they hold."""
    return max(1, chosen_threads() // size)


def path_of(model: str) -> Path:
    """The file or folder of a model, by what start takes."""
    return Path(model.removeprefix("random:"))


def _check_cores(name: str, size: int) -> None:
    """Raise ConfigError for more ranks than the cores of this machine can serve."""
    cores = os.cpu_count() or 1
    if size > cores * MOST_PER_CORE:
        raise ConfigError(
            f"{name} is {size}, and this machine has {cores} cores; it must be at most "
            f"{cores * MOST_PER_CORE} here, {MOST_PER_CORE} for each. Each rank is a process."
        )


def check_memory(model: Path, size: int, *, free: int | None) -> None:
    """Refuse a model that all ranks of this machine together have no memory for.

    model: the file, or the folder of files, that they read.   free: bytes; None where the system
    does not say.
    Raises: ConfigError naming both.
    """
    stored = stored_bytes(model)
    if free is None or stored <= free:
        return
    raise ConfigError(
        f"the model's weights take {stored / 2**30:.1f} GiB as they are stored, and "
        f"{free / 2**30:.1f} GiB are free on this machine, which all {size} ranks share. Take a "
        "smaller model, or one in fewer bits."
    )


def start(
    model: str,
    config: EngineConfig,
    *,
    devices: Sequence[torch.device] = (),
    seconds: float = STAGE_SECONDS,
) -> FollowersLoading:
    """Processes for ranks from 1, which have met this one, rank 0, and load their parts.

    model: by what it can be found again.   devices: of each rank; none given are CPUs.
    seconds: for each stage of the start.
    Raises: ConfigError naming who is missing and at which stage.
    """
    if config.rank_listen is not None:
        return _start_far(config, config.rank_listen, model, seconds=seconds)
    size, started = config.num_ranks, Followers()
    devices = devices or [torch.device("cpu")] * size
    words = [word for word in ("tensor", "pipeline") if getattr(config, word) > 1]
    _check_cores(" times ".join(words), size)
    try:
        threads = threads_of_rank(size)
        torch.set_num_threads(threads)
        for _ in range(1, size):
            started.add(threads)
        for rank, link in enumerate(started.links, start=1):
            settings = {**config.as_settings(), "device": str(devices[rank])}
            with suppress(OSError):  # it is gone, which the next line tells
                send(link, JoinRanks(model, settings, rank, size, str(started.folder), seconds))
        wait(started.links, "started", seconds)

        def join(name: str, rank: int, size: int) -> RankGroup:
            return join_processes(
                started.folder, rank, size, seconds=seconds, device=devices[0], name=name
            )

        advice = "Start with tensor 1."
        grid = _meet(started.links, join, config, seconds, where=LOOPBACK, advice=advice)
        if devices[0].type == "cpu":
            started.clear_folder()  # NCCL may look there again, for two ranks that had not met
    except BaseException:
        started.end()
        raise
    return FollowersLoading(grid, started)


def _start_far(
    config: EngineConfig, listen: str, model: str, *, seconds: float
) -> FollowersLoading:
    """Ranks of other hosts, which have joined and met this one, and load their parts.

    Raises: ConfigError naming who is missing and at which stage.
    """
    size, address = config.num_ranks, LinkAddress.parse(listen, takes_any=True)
    file = None if config.rank_key_file is None else Path(config.rank_key_file)
    key = read_link_key(file, where=f"to let ranks join at {address}", flag="--rank-key-file")
    path = path_of(model)
    started = FarFollowers(
        size=size, files=digest_files(path), rank_bytes=stored_bytes(path) // size
    )
    try:
        started.gather(address, key, JOIN_SECONDS)
        host = started.links[0].own_host
        store, port = open_meeting(host, seconds=seconds)
        settings = {**config.as_settings(), "device": "cpu"}
        started.tell(
            [
                JoinRanks("", settings, rank, size, "", seconds, (host, port))
                for rank in range(1, size)
            ]
        )
        wait(started.links, "started", seconds)

        def join(name: str, rank: int, size: int) -> RankGroup:
            return join_hosts(store, rank, size, host=host, seconds=seconds, name=name)

        advice = "Look whether hosts reach one another at any port."
        grid = _meet(started.links, join, config, seconds, where=host, advice=advice)
    except BaseException:
        started.end()
        raise
    return FollowersLoading(grid, started)


class StartedRanks(Protocol):
    """Followers that have started, here or on other hosts, and what ends them."""

    @property
    def links(self) -> Sequence[ByteSocket]:
        """To each, in the order of ranks from 1."""
        ...

    def end(self) -> None:
        """End them all."""
        ...


class FollowersLoading(NamedTuple):
    """Ranks that have met, and the followers among them, which are loading."""

    grid: RankGrid
    started: StartedRanks

    def wait_loaded(self, seconds: float) -> Ranks:
        """All of it, to be led. Raises: ConfigError naming a rank that has not loaded."""
        try:
            weights = wait(self.started.links, "loaded", seconds)
        except BaseException:
            self.started.end()
            raise
        return Ranks(self.grid, self.started.links, end=self.started.end, weight_bytes=weights)


def _meet(
    links: Sequence[ByteSocket],
    join: Join,
    config: EngineConfig,
    seconds: float,
    *,
    where: str,
    advice: str,
) -> RankGrid:
    """Join the others, for so many seconds at most, and gather once."""
    try:
        grid = RankGrid.join(0, tensor=config.tensor, pipeline=config.pipeline, join=join)
    except RuntimeError as fault:
        wait(links, "met", 1.0)  # names who is missing
        raise ConfigError(
            f"{config.num_ranks} ranks did not meet over {where} within {seconds:g} s, though each "
            f"of the others says that it did. {advice}"
        ) from fault
    wait(links, "met", seconds)
    grid.try_out()
    return grid


def wait(links: Sequence[ByteSocket], stage: str, seconds: float) -> list[int]:
    """Until each rank is at a stage; the bytes that each tells. Raises: ConfigError naming one."""
    size = 1 + len(links)
    return [_await(link, rank, size, stage, seconds) for rank, link in enumerate(links, start=1)]


def _await(link: ByteSocket, rank: int, size: int, stage: str, seconds: float) -> int:
    where = link.where if isinstance(link, SealedSocket) else LOOPBACK
    link.settimeout(seconds)
    try:
        reply = receive_reply(link)
    except TimeoutError:
        raise ConfigError(
            f"rank {rank} of {size} has not {stage} within {seconds:g} s, over {where}. Look at "
            "its stderr, or start with fewer ranks."
        ) from None
    except OSError:
        reply = None
    if isinstance(reply, CannotFollow):
        raise ConfigError(f"rank {rank} of {size}: {reply.why}")
    if not isinstance(reply, AtStage) or reply.stage != stage:
        raise ConfigError(f"rank {rank} of {size} ended before it had {stage}. Look at stderr.")
    return reply.num_bytes


def _spawn(link: socket.socket, line: socket.socket, threads: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "cutaway.engine.ranks.follower"),
            *(str(link.fileno()), str(line.fileno())),
        ],
        pass_fds=(link.fileno(), line.fileno()),
        stdin=subprocess.DEVNULL,
        stdout=2,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
