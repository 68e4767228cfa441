"""Bounds of a served engine, each with the reason of its default: what may wait, and for how long.

SharedBound is one that owners share. Free of torch and of asyncio: the command line reads the
defaults for its help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrafficConfig:
    """How much may wait.

    max_waiting: answers beyond those that run at once, of which a request has n; None takes
        4 x max_sequences: at equal lengths the last one waits for four rounds of answers, about
        as long as people do.
    max_waiting_tokens: of prompts that wait; None takes 8 times what the cache holds.
    Raises: ConfigError naming the setting, its value and what is allowed.
    """

    max_waiting: int | None = None
    max_waiting_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_waiting_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    f"{name} is {value}; it must be at least 1. Leave it out for the default."
                )


# Of an engine in a fleet: who waits, waits at the fleet.
UNBOUNDED = TrafficConfig(max_waiting=2**40, max_waiting_tokens=2**50)


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """How an engine's process is watched.

    hang_seconds: without a sign of work, after which nothing is taken in and stderr says where the
        engine's threads stand. Work shows itself by each operation of a step, not by steps alone:
        the longest honest one, 2048 tokens of prompts by a model of 8 billion parameters on two
        cores, takes about 120 seconds at 0.3 TFLOP/s and half a second per operation.
    stall_seconds: without a sign of work, after which the engine is started again.
    load_seconds: loading may take so long; 140 GB from a disk at 100 MB/s take 1400 seconds.
    restart_seconds: the longest pause between two starts that fail; the first is half a second,
        each next one twice the one before. An engine that has answered is started again at once.
    max_restarts: starts in a row without an answer between, after which it is given up; None
        tries for ever, 0 never starts it again.
    Raises: ConfigError naming the setting, its value and what is allowed.
    """

    hang_seconds: float = 8.0
    stall_seconds: float = 60.0
    load_seconds: float = 1800.0
    restart_seconds: float = 30.0
    max_restarts: int | None = None

    @property
    def silent_seconds(self) -> float:
        """After which the engine counts as hung: before it is ended, whatever the two say."""
        return min(self.hang_seconds, self.stall_seconds)

    def __post_init__(self) -> None:
        for name in ("hang_seconds", "stall_seconds", "load_seconds", "restart_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if self.max_restarts is not None and self.max_restarts < 0:
            raise ConfigError(
                f"max_restarts is {self.max_restarts}; it must be at least 0. Leave it out to try "
                "for ever."
            )


@dataclass(frozen=True, kw_only=True)
class FleetShare:
    """What one engine's process has of a machine and of a fleet.

    num_threads: to compute with; None takes those of the machine.
    num_sharing: engines that share its memory, itself included.
    page_secret: of which all of a fleet make keys of pages; None draws one.
    variables:   that the process has beside those of this one.
    """

    num_threads: int | None = None
    num_sharing: int = 1
    page_secret: bytes | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        """All variables that the process has beside those of this one."""
        threads = {} if self.num_threads is None else {"OMP_NUM_THREADS": str(self.num_threads)}
        return {**threads, **self.variables}


# An owner gets more while it holds less than so many times what is free: alone 4/5 of a bound, so
# that others find room. Choudhury and Hahne 1998 share the buffers of switches this way.
SHARE = 4


class SharedBound:
    """How much of something owners hold, and whether one may hold more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: Counter[str] = Counter()

    @property
    def left(self) -> int:
        """What nobody holds; below 0 when one that came first brought more than all."""
        return self.most - self.total

    def has_room(self, owner: str, amount: int = 1, *, coming: int = 0) -> bool:
        """Whether an owner may hold so much more; whoever comes when it is empty may.

        coming: what it is about to hold besides.
        """
        left = self.left - coming
        if not self.total and not coming:
            return True
        return amount <= left and self._held[owner] + coming < SHARE * left

    def take(self, owner: str, amount: int = 1) -> None:
        """Count what an owner holds from now on; whether it may is for has_room to say."""
        self._held[owner] += amount
        self.total += amount

    def give(self, owner: str, amount: int = 1) -> None:
        """Count what an owner gives back."""
        self.total -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]  # owners come and go
