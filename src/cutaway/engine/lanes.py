"""Sequences that are decoded side by side, step after step: what a step needs of them, kept.

From one step to the next positions and slots go up by one, a page is added now and then, and the
settings of the draws stay. So nothing is made anew for a sequence while the company is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cutaway.cache.paged import PagedCache, PageTables
from cutaway.core.step import Numbers, ShapePlan
from cutaway.engine.running import Running
from cutaway.engine.sequence import Sequence
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.captured_draws import CapturedDraws
from cutaway.sampling.sampler import PendingDraws, SteadyRows, begin_plain

Integers = NDArray[np.int64]


class Lanes:
    """One row of a decode step for each sequence.

    sequences: in the order of the rows.   positions: of the token that each row computes [B].
    """

    def __init__(self, sequences: list[Sequence], positions: Integers) -> None:
        self.sequences = sequences
        self._positions = positions
        self._ends = np.array([sequence.max_length for sequence in sequences])
        self._slots: list[Integers] = []  # of each cache group [B], once pages are reserved
        self._draws: SteadyRows | None = None
        self._settings: list[SamplerRow] = []

    @cached_property
    def rows(self) -> dict[Sequence, int]:
        """The row of each sequence."""
        return {sequence: row for row, sequence in enumerate(self.sequences)}

    @property
    def starts(self) -> list[int]:
        """Position of each row's token."""
        return self._positions.tolist()

    @cached_property
    def _tables(self) -> list[PageTables]:
        return [each.tables for each in self.sequences if each.tables is not None]

    def reserve(self, cache: PagedCache) -> bool:
        """Pages for the token of every row; False when they are short."""
        tables, positions = self._tables, self.starts
        for each, position in zip(tables, positions, strict=True):
            if not cache.reserve(each, position + 1):
                return False
        self._slots = [
            np.array([t.groups[g].slots(p, 1)[0] for t, p in zip(tables, positions, strict=True)])
            for g in range(len(tables[0].groups))
        ]
        return True

    def following(self, rows: list[int]) -> tuple[Lanes, list[int]]:
        """The lanes of some rows whose next token is not their last, and which rows those are."""
        indices = np.array(rows)
        goes_on = self._positions[indices] + 2 < self._ends[indices]
        if len(rows) == len(self.sequences) and goes_on.all():
            return self, rows
        indices = indices[goes_on]
        kept: list[int] = indices.tolist()
        lanes = Lanes([self.sequences[row] for row in kept], self._positions[indices])
        lanes._slots = [slots[indices] for slots in self._slots]
        lanes._draws = None if self._draws is None else self._draws.keep(kept)
        return lanes, kept

    def advance(self, cache: PagedCache) -> bool:
        """Go on to each sequence's next token; False, and of no more use, when pages are short."""
        self._positions = self._positions + 1
        self._slots = [slots + 1 for slots in self._slots]
        size = cache.page_size
        for row in np.flatnonzero(self._positions % size == 0).tolist():
            tables, position = self._tables[row], int(self._positions[row])
            if not cache.reserve(tables, position + 1):
                return False
            for slots, table in zip(self._slots, tables.groups, strict=True):
                slots[row] = table.slots(position, 1)[0]
        return True

    @property
    def numbers(self) -> Numbers:
        """The step, but for its token ids, which stand for nothing."""
        count = len(self.sequences)
        groups = range(len(self._slots))
        return Numbers(
            token_ids=[0] * count,
            positions=self.starts,
            declared_lengths=self._ends.tolist(),
            logit_rows=range(count),
            plan=ShapePlan((1,) * count, tuple((self._positions + 1).tolist())),
            pages=[[tables.groups[group].pages for tables in self._tables] for group in groups],
            slots=[slots.tolist() for slots in self._slots],
        )

    def may_draw(self, answers: Mapping[Sequence, Running]) -> bool:
        """Whether no row's draw hangs on the token that is not known yet."""
        if self._draws is not None:
            return True
        rows = [answers[sequence].row_ahead() for sequence in self.sequences]
        self._settings = [row for row in rows if row is not None]
        return len(self._settings) == len(rows)

    def draw(
        self, logits: Tensor, answers: Mapping[Sequence, Running], captured: CapturedDraws | None
    ) -> PendingDraws:
        """Draw each row's token from its logits; after may_draw.

        captured: what draws from logits that a captured step leaves.   Shapes: logits [B, V].
        """
        if self._draws is None:
            self._draws = SteadyRows.of(self._settings, logits)
        if self._draws is None:
            return begin_plain(logits, self._settings)
        run = None if captured is None else captured.run
        return self._draws.begin(logits, (self._positions + 1).tolist(), run)
