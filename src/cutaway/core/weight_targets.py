"""Where a stored tensor goes in the model: the contract between architectures and loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PairedRows:
    """Rows of heads that a file keeps in the order of interleaved rotary pairs.

    Of each head's rows those that turn stand as 0, h, 1, h + 1, ... where h is half of them: side
    by side what turns together. The model has them in their own order, as most files do.

    heads:   so many come first; rows behind theirs stay, as values of a joined matrix.
    size:    rows of a head.
    turning: of them, from the first on.
    axis:    of the stored tensor along which the rows lie.
    """

    heads: int
    size: int
    turning: int
    axis: int = 0

    def order(self, count: int) -> list[int]:
        """For each of count rows of the model the stored one."""
        head = [*range(0, self.turning, 2), *range(1, self.turning, 2)]
        head += range(self.turning, self.size)
        starts = range(0, self.heads * self.size, self.size)
        return [s + row for s in starts for row in head] + [*range(starts.stop, count)]


@dataclass(frozen=True)
class Target:
    """Destination of one stored tensor.

    pairs: set when the file keeps rows of heads in another order; see PairedRows.
    is_transposed: set when the file has the last two dimensions the other way round.
    is_row: set when the file keeps the only row of a matrix as a vector.
    shift: added to every stored value, for files that keep a weight another way.
    rest: what a vector that is no bias holds where nothing was learned.
    part: set when the tensor is a part of its parameter, for instance one expert of a stack.
    kept: the rows of the model's own tensor that this rank keeps, in order; None keeps all.
    kept_axis: along which they lie.
    """

    parameter: str  # dotted path of the module's parameter
    shape: tuple[int, ...]  # as the file has it
    pairs: PairedRows | None = None
    is_transposed: bool = False
    is_row: bool = False
    part: tuple[int | slice, ...] = ()  # index of the parameter's leading dimensions
    shift: float = 0.0
    rest: float = 1.0
    kept: tuple[range, ...] | None = None
    kept_axis: int = 0

    @property
    def final_shape(self) -> tuple[int, ...]:
        """Shape that the tensor has in the model."""
        whole = (1, *self.shape) if self.is_row else self.shape
        if self.is_transposed:
            whole = (*whole[:-2], whole[-1], whole[-2])
        if self.kept is None:
            return whole
        axis = self.kept_axis
        return (*whole[:axis], sum(map(len, self.kept)), *whole[axis + 1 :])

    def narrow(self, kept: KeptRows | None) -> Target:
        """The same for a rank that keeps some rows of its parameter; None keeps all."""
        if kept is None:
            return self
        axis = kept.axis - sum(isinstance(each, int) for each in self.part[: kept.axis])
        if len(self.part) <= kept.axis:
            return replace(self, kept=kept.ranges, kept_axis=axis)
        rows = self.part[kept.axis]
        assert isinstance(rows, slice), "a tensor holds rows side by side"
        own, places = _shared(kept.ranges, range(kept.total)[rows])
        part = (*self.part[: kept.axis], places, *self.part[kept.axis + 1 :])
        return replace(self, kept=own, kept_axis=axis, part=part)


@dataclass(frozen=True)
class KeptRows:
    """Rows of a parameter that a rank keeps, in order.

    axis: of the parameter, along which they lie.   total: rows that it has as a whole; needed
    where tensors are parts of it along this axis.
    """

    ranges: tuple[range, ...]
    axis: int = 0
    total: int = 0


def _shared(kept: Sequence[range], rows: range) -> tuple[tuple[range, ...], slice]:
    """Which of a tensor's rows are kept, and where they lie among all that are kept."""
    own: list[range] = []
    places: list[range] = []
    before = 0
    for each in kept:
        first = max(0, -(-(each.start - rows.start) // rows.step))
        last = max(first, min(len(rows), -(-(each.stop - rows.start) // rows.step)))
        if last > first:
            own.append(range(first, last))
            start = before + rows[first] - each.start
            places.append(range(start, start + (last - first) * rows.step, rows.step))
        before += len(each)
    if not own:
        return (), slice(0, 0)
    count = sum(map(len, own))
    joined = range(places[0].start, places[0].start + count * rows.step, rows.step)
    assert [*joined] == [i for each in places for i in each], "they lie at one distance"
    return tuple(own), slice(joined.start, joined.stop, rows.step)
