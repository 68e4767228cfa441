"""The learning rate's course: a factor of its peak, as a pure function of the update's index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

_HELD = 0.7  # share of all updates after which WSD falls
_WSD_END, _COSINE_END = 0.05, 0.1


@dataclass(frozen=True)
class Schedule:
    """A course over a number of updates.

    name: a key of COURSES.   num_updates: of the whole run.
    warmup: updates until the peak is reached; None takes 2 % of all, at most 500.
    """

    name: str
    num_updates: int
    warmup: int | None = None

    def __post_init__(self) -> None:
        if self.name not in COURSES:
            known = ", ".join(COURSES)
            raise ConfigError(f"schedule is {quote(self.name)}; it must be one of {known}.")
        if self.warmup and self.warmup >= self.num_updates:
            raise ConfigError(
                f"warmup is {self.warmup}; it must be below updates, {self.num_updates}, or the "
                "rate never reaches its peak."
            )

    def factor(self, update: int) -> float:
        """What the peak is multiplied by for an update; the first has index 0."""
        warmup = min(self.num_updates // 50, 500) if self.warmup is None else self.warmup
        rise = min(1.0, (update + 1) / warmup) if warmup else 1.0
        span = max(1, self.num_updates - warmup)
        return rise * COURSES[self.name](max(0.0, (update - warmup) / span), warmup / span)


def _constant(done: float, before: float) -> float:
    del done, before
    return 1.0


def _cosine(done: float, before: float) -> float:
    del before
    return _COSINE_END + (1.0 - _COSINE_END) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def _wsd(done: float, before: float) -> float:
    share = (done + before) / (1.0 + before)  # of all updates, the warm-up included
    fallen = max(0.0, min(1.0, (share - _HELD) / (1.0 - _HELD)))
    return 1.0 - fallen * (1.0 - _WSD_END)


# Of the share of updates done after the warm-up, and of the warm-up's length in the same units.
COURSES: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"constant": _constant, "cosine": _cosine, "wsd": _wsd}
)
