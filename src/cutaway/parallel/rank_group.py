"""Groups of ranks that gather: processes by torch.distributed, and threads of one process.

Both move numbers and add none, so what is gathered is the same in each. No model is known here.
"""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import torch
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo, Store, TCPStore

from cutaway.core.errors import ConfigError
from cutaway.core.step import Sink
from cutaway.parallel import far_taps

# A loopback address: ranks of one host, whatever its name resolves to.
LOOPBACK = "127.0.0.1"
_STEP_SECONDS = timedelta(minutes=30)
_CPU = torch.device("cpu")


class _Rank:
    """A rank's number, and whether a step is being computed, in which every rank does the same."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._depth = 0

    @contextmanager
    def step(self) -> Generator[None]:
        """Within it values can be gathered."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def check(self) -> None:
        """Raise ConfigError outside of a step, where the others do nothing."""
        if not self._depth:
            raise ConfigError(
                f"this computes with whole matrices, which are divided among {self.size} ranks "
                "here. Start with tensor 1 for it."
            )


class RankGroup(_Rank, ABC):
    """The ranks among which one model is divided, as one of them sees them.

    sink: in a step whose inner values are read: rank 0's own, where ranks have layers.
    is_tapped: whether this rank tells rank 0 of such values in the step.
    """

    sink: Sink | None = None
    is_tapped = False

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """What each rank hands in, all in one shape. Shapes: [...] -> [N, ...]."""

    @abstractmethod
    def to_root(self, x: Tensor) -> Tensor | None:
        """The same for rank 0 alone; None for the others."""

    @abstractmethod
    def hand(self, x: Tensor, to: int) -> None:
        """Move a value to one other rank, which takes it."""

    @abstractmethod
    def take(self, like: Tensor, source: int) -> Tensor:
        """What another rank hands over, in the shape and the dtype of something."""

    def send(self, x: Tensor, to: int) -> None:
        """Hand on the rows behind this rank's layers; its taps of the step are over then."""
        if self.is_tapped and self.rank:
            far_taps.finish(_TapWire(self))
        self.hand(x, to)

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Take over the rows before this rank's layers; rank 0 answers others' taps meanwhile."""
        if self.sink is not None and self.rank == 0:
            for each in range(1, self.size):
                far_taps.answer(_TapWire(self), self.sink, each)
        return self.take(like, source)

    def tell(self, name: str, value: Tensor, layer: int | None) -> Tensor | None:
        """A follower's sink: rank 0's own sees the value."""
        return far_taps.tell(_TapWire(self), name, value, layer)

    def try_out(self) -> None:
        """Gather known numbers, that a library which moves them wrongly is found at the start.

        Raises: ConfigError naming what came otherwise.
        """
        own = torch.arange(4, dtype=torch.float32) + 4 * self.rank
        with self.step():
            for word, got in (("gather", self.gather(own)), ("to_root", self.to_root(own))):
                expected = torch.arange(4 * self.size, dtype=torch.float32).view(-1, 4)
                if got is not None and not torch.equal(got.cpu(), expected):
                    raise ConfigError(
                        f"{word} among {self.size} ranks gave {got.tolist()} for "
                        f"{expected.tolist()}. The library that joins them does not work here; "
                        "start with tensor 1."
                    )
            before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
            if self.rank == 0:  # a value that is handed on may wait until it is taken
                self.hand(own, after)
            passed = self.take(torch.zeros_like(own), before)
            if self.rank:
                self.hand(own, after)
            if not torch.equal(passed, torch.arange(4, dtype=torch.float32) + 4 * before):
                raise ConfigError(
                    f"a value handed from rank {before} to {self.rank} came as "
                    f"{passed.tolist()}. The library that joins them does not work here; start "
                    "with one rank."
                )


class _TapWire:
    """Values of taps between two ranks, as far_taps wants them."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def send(self, x: Tensor, to: int) -> None:
        """To another rank."""
        self._group.hand(x, to)

    def receive(self, like: Tensor, source: int) -> Tensor:
        """From another rank."""
        return self._group.take(like, source)


class ProcessGroup(RankGroup):
    """A rank that is a process.

    backend: a process group of torch.distributed, over the device's library.
    device:  where it moves numbers; what lies elsewhere goes there first.
    """

    def __init__(self, backend: Any, rank: int, size: int, *, device: torch.device = _CPU) -> None:
        super().__init__(rank, size)
        self._backend, self._device = backend, device

    def gather(self, x: Tensor) -> Tensor:
        """What each rank hands in. Shapes: [...] -> [N, ...]."""
        self.check()
        x = x.to(self._device)
        every = torch.empty((self.size, *x.shape), dtype=x.dtype, device=self._device)
        # As bytes: libraries that move numbers do not know every dtype.
        places, own = every.view(-1).view(torch.uint8), x.reshape(-1).view(torch.uint8)
        self._backend._allgather_base(places, own).wait()
        return every

    def to_root(self, x: Tensor) -> Tensor | None:
        """The same for rank 0 alone. Shapes: [...] -> [N, ...]."""
        self.check()
        if self._device.type != "cpu":  # one call that can be captured, and no slower
            every = self.gather(x)
            return every if self.rank == 0 else None
        every = torch.empty((self.size, *x.shape), dtype=x.dtype) if self.rank == 0 else None
        places: list[Tensor] = []
        if every is not None:
            places += every.view(self.size, -1).view(torch.uint8).unbind()
        self._backend.gather(places, x.reshape(-1).view(torch.uint8), 0).wait()
        return every

    def hand(self, x: Tensor, to: int) -> None:
        """Move a value to one other rank."""
        there = x.to(self._device)
        self._backend.send([there.reshape(-1).view(torch.uint8)], to, 0).wait()

    def take(self, like: Tensor, source: int) -> Tensor:
        """What another rank hands over."""
        place = torch.empty_like(like, device=self._device)
        self._backend.recv([place.view(-1).view(torch.uint8)], source, 0).wait()
        return place.to(like.device)


def join_processes(
    folder: Path,
    rank: int,
    size: int,
    *,
    seconds: float,
    device: torch.device = _CPU,
    name: str = "ranks",
) -> ProcessGroup:
    """A rank among processes of this host that meet in a folder of their own. Blocks until all do.

    name: of the group: others may meet in the folder too.
    seconds: that a rank waits here for another. In a gather it waits longer: who leads is watched.
    device: this rank's own: gloo moves numbers between CPUs, NCCL between GPUs.
    Raises: RuntimeError where one does not come.
    """
    store = FileStore(str(folder / name), size)
    store.set_timeout(timedelta(seconds=seconds))
    if device.type == "cuda":
        return ProcessGroup(_nccl(store, rank, size, device), rank, size, device=device)
    return join_hosts(store, rank, size, host=LOOPBACK, seconds=seconds)


def open_meeting(host: str, *, seconds: float) -> tuple[Store, int]:
    """Where ranks of several hosts meet, at rank 0, and its port: it is bound before it is told.

    It asks nobody for a key, as nothing of torch.distributed does, and lasts as long as the group.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as bound:
        port = bound.getsockname()[1]
        store = TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=bound.detach(),
        )
    return store, port


def find_meeting(host: str, port: int, *, seconds: float) -> Store:
    """The same as another rank finds it. Raises: RuntimeError where nobody is there."""
    return TCPStore(host, port, timeout=timedelta(seconds=seconds), wait_for_workers=False)


def join_hosts(
    store: Store, rank: int, size: int, *, host: str, seconds: float, name: str = "ranks"
) -> ProcessGroup:
    """A rank among processes that meet in a store. Blocks until all do.

    host: this one's own address.   name: of the group: others may meet in the store too.
    Raises: RuntimeError where one does not come.
    """
    store = PrefixStore(name, store)
    patience = timedelta(seconds=seconds)
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout = patience
    backend = gloo(store, rank, size, options)
    backend._set_default_timeout(_STEP_SECONDS)
    return ProcessGroup(backend, rank, size)


def _nccl(store: FileStore, rank: int, size: int, device: torch.device) -> Any:
    """NCCL's group over this rank's GPU. It meets in the store with the first gather."""
    from torch import distributed

    torch.cuda.set_device(device)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # ranks of one host
    nccl: Any = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = _STEP_SECONDS
    return nccl(store, rank, size, options)


class _Table:
    """Where threads lay down what they hand in, and hand one another."""

    def __init__(self, size: int, seconds: float) -> None:
        # Of every other gathering: who lays something down for the next but one was at the next,
        # for which all came that had read this.
        self.places: list[list[Tensor | None]] = [[None] * size for _ in range(2)]
        self.meeting = threading.Barrier(size, timeout=seconds)
        self.seconds = seconds
        pairs = ((a, b) for a in range(size) for b in range(size))
        self.between: dict[tuple[int, int], Queue[Tensor]] = {pair: Queue() for pair in pairs}


class ThreadGroup(RankGroup):
    """A rank that is a thread, for tests and for many ranks on one device."""

    def __init__(self, table: _Table, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._table = table
        self._is_odd = False  # whether the next gathering is

    @staticmethod
    def of(size: int, *, seconds: float = 60.0) -> Sequence[ThreadGroup]:
        """So many ranks that belong together. seconds: that one waits for another."""
        table = _Table(size, seconds)
        return [ThreadGroup(table, rank, size) for rank in range(size)]

    def gather(self, x: Tensor) -> Tensor:
        """What each rank hands in. Shapes: [...] -> [N, ...].

        Raises: RuntimeError (threading.BrokenBarrierError) where another does not come.
        """
        self.check()
        places = self._table.places[self._is_odd]
        places[self.rank] = x.clone()  # it may be changed here before all have read it
        self._table.meeting.wait()
        self._is_odd = not self._is_odd
        return torch.stack([place for place in places if place is not None])

    def to_root(self, x: Tensor) -> Tensor | None:
        """The same for rank 0 alone."""
        every = self.gather(x)
        return every if self.rank == 0 else None

    def hand(self, x: Tensor, to: int) -> None:
        """Move a value to one other rank; it may be changed here afterwards."""
        self._table.between[self.rank, to].put(x.clone())

    def take(self, like: Tensor, source: int) -> Tensor:
        """What another rank hands over. Raises: RuntimeError where it hands over nothing."""
        try:
            found = self._table.between[source, self.rank].get(timeout=self._table.seconds)
        except Empty:
            raise RuntimeError(f"rank {source} handed nothing over") from None
        assert found.shape == like.shape and found.dtype == like.dtype, "ranks agree on a step"
        return found

    def leave(self) -> None:
        """Let nobody wait for this rank any more."""
        self._table.meeting.abort()
