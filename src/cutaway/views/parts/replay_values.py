"""What a view wants of a run's inner values, and what a replay took of them, with its proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Wanted:
    """Inner values, by place.

    taps:   names of taps.    layers: of which layers, for taps that are in layers.
    start, end: positions whose rows of the taps are wanted.
    stored: layers whose stored tokens 0 to end are wanted (keys and values, or latents).
    rows:   indices of the answer's tokens whose logits are wanted.
    """

    taps: frozenset[str] = frozenset()
    layers: frozenset[int] = frozenset()
    start: int = 0
    end: int = 0
    stored: frozenset[int] = frozenset()
    rows: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wanted, so that no replay is needed."""
        return not (self.taps or self.stored or self.rows)

    def __or__(self, other: Wanted) -> Wanted:
        """The least that covers both."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        spans = [each for each in (self, other) if each.end > each.start]
        return Wanted(
            taps=self.taps | other.taps,
            layers=self.layers | other.layers,
            start=min((each.start for each in spans), default=0),
            end=max((each.end for each in spans), default=0),
            stored=self.stored | other.stored,
            rows=self.rows | other.rows,
        )

    def covers(self, other: Wanted) -> bool:
        """Whether all that other wants is wanted here as well."""
        return (self | other) == self or other.is_empty


@dataclass(frozen=True)
class Proof:
    """Whether a replay gave the very logits that were served.

    num_rows: rows that were compared by checksum; num_equal: of them equal.
    cause:    why they need not be, in words; None where all are.
    """

    level: str
    num_rows: int
    num_equal: int
    cause: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether rows were compared and all of them are equal."""
        return self.num_rows == self.num_equal > 0

    def __str__(self) -> str:
        if self.is_exact:
            rows = "row" if self.num_rows == 1 else "rows"
            return f"exact ({self.level}, {self.num_rows} {rows})"
        return f"not exact ({self.level}): {self.num_equal} of {self.num_rows} rows; {self.cause}"


@dataclass(frozen=True)
class ReplayValues:
    """What was wanted. Values lie on the model's device, in float32.

    Shapes: each tap [end - start, ...]; stored fields [end, ...]; rows [V].
    """

    wanted: Wanted
    proof: Proof
    values: Mapping[tuple[str, int | None], Tensor]
    stored: Mapping[int, Mapping[str, Tensor]]
    rows: Mapping[int, Tensor]

    def value(
        self, name: str, layer: int | None = None, *, start: int = 0, end: int | None = None
    ) -> Tensor:
        """A tap's rows of some positions; all that were taken unless told otherwise."""
        first = self.wanted.start
        value = self.values[name, layer]
        return value[max(0, start - first) : None if end is None else end - first]
