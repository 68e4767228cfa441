"""Settings of a fleet, each with the reason of its default. Free of torch and of asyncio."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from cutaway.core.errors import ConfigError
from cutaway.core.limits import MOST_PER_CORE, quote
from cutaway.host.link_key import LinkAddress

Resume = Literal["class", "strict", "any", "off"]
MOST_REPLICAS = 256


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """How many engines answer, and how an answer goes on whose engine ends.

    replicas:    engines, each a process with the whole model; 0 where all are elsewhere.
    most_replicas: where more than a second is waited, engines are started, up to so many; they
        end one by one where fewer were enough for ten minutes. None: as many as replicas.
    members:     addresses of engines elsewhere, as tcp://HOST:PORT.
    least_ready: of them that have to be there before the first request is taken in; later one
        is enough.
    resume: class: in an engine that gives the same numbers; where its kernels are not invariant
        the seam may not be exact, and the answer's last event says so. strict: such a seam ends
        the answer in an error. any: in engines of other numbers too. off: it ends in an error.
    Raises: ConfigError naming the setting, its value and what is allowed.
    """

    replicas: int = 1
    most_replicas: int | None = None
    members: tuple[str, ...] = ()
    least_ready: int = 1  # an answer by a part of the fleet is better than none
    resume: Resume = "class"

    def __post_init__(self) -> None:
        if not (0 if self.members else 1) <= self.replicas <= MOST_REPLICAS:
            raise ConfigError(
                f"replicas is {self.replicas}; it must be from 1 to {MOST_REPLICAS}. Each holds "
                "the whole model in a process of its own."
            )
        self._check_most()
        self._check_cores("replicas", self.replicas)
        self._check_cores("most_replicas", self.most_replicas or 0)
        for member in self.members:
            LinkAddress.parse(member)
        if len(set(self.members)) < len(self.members):
            raise ConfigError("an address is given twice as --member; each engine joins once.")
        most = self.replicas + len(self.members)
        if not 1 <= self.least_ready <= most:
            what = "replicas and members" if self.members else "replicas"
            raise ConfigError(
                f"least_ready is {self.least_ready}; it must be from 1 to {what}, {most}."
            )
        if self.resume not in get_args(Resume):
            raise ConfigError(
                f"resume is {quote(self.resume)}; it must be one of {', '.join(get_args(Resume))}."
            )

    def _check_most(self) -> None:
        most = self.most_replicas
        if most is not None and not max(1, self.replicas) <= most <= MOST_REPLICAS:
            raise ConfigError(
                f"most_replicas is {most}; it must be from replicas, {self.replicas}, to "
                f"{MOST_REPLICAS}."
            )
        if most is not None and not self.replicas:
            raise ConfigError(
                f"most_replicas is {most} and replicas is 0; at least one engine here is kept. "
                "Set replicas to 1."
            )

    def _check_cores(self, name: str, count: int) -> None:
        cores = os.cpu_count() or 1
        if count > cores * MOST_PER_CORE:
            raise ConfigError(
                f"{name} is {count}, and this machine has {cores} cores; it must be at "
                f"most {cores * MOST_PER_CORE} here, {MOST_PER_CORE} for each. Each holds the "
                "whole model and computes by itself."
            )
