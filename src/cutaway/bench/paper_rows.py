"""A row of the paper table: our figure, how it came about, the published one and its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Say = Callable[[str], None]
How = Literal["computed", "allocated", "counted", "measured"]


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One figure.

    how:       computed from a shape, allocated by the engine's cache or weights, counted from the
               operations that ran, or measured here.
    formula:   how value follows from terms, as an expression of their names; log is natural.
    published: None where the source has no figure of its own to compare with.
    model:     what it was taken on; "random" is in the name of every shape with made-up weights.
    """

    section: str
    name: str
    value: float
    unit: str
    how: How
    model: str
    formula: str
    terms: Mapping[str, float]
    source: str
    published: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PaperSize:
    """How much work a run does; the small one is for tests."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)  # of attention
    contexts: tuple[int, ...] = (32, 128, 512, 1024)  # with and without the cache
    cost_contexts: tuple[int, ...] = (16, 512, 1024)
    batches: tuple[int, ...] = (1, 8)
    prefix: int = 1024  # tokens that prompts share
    own: int = 32  # tokens after them
    rounds: int = 3
    steps: int = 12  # of a decode measurement
    model: str = "smollm2"
    window_context: int = 32_768


SMALL = PaperSize(
    lengths=(64, 128, 256),
    contexts=(16, 48, 96),
    cost_contexts=(16, 64),
    batches=(1, 3),
    prefix=64,
    own=8,
    rounds=2,
    steps=4,
)


@dataclass
class PaperReport:
    """All rows, where they were measured, and how long the run took."""

    rows: list[PaperRow] = field(default_factory=list[PaperRow])
    machine: dict[str, object] = field(default_factory=dict[str, object])
    seconds: float = 0.0
