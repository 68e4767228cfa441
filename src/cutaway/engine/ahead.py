"""The next decode step, begun on a GPU before the host knows the tokens of this one.

Its token ids are what the sampler leaves on the device; all else of it is known: places, pages,
lengths, and the numbers of its draws. While the GPU computes it, the host reads this step's tokens
and tells them. Then it plans as ever. Where its plan is what was begun, that is taken, without
those that ended meanwhile; otherwise it is computed again, and writes the very numbers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from cutaway.core.step import Numbers, ShapePlan
from cutaway.engine.batch import Batch
from cutaway.engine.draws import score_prompts, select_rows
from cutaway.engine.runner import Runner
from cutaway.engine.running import Running
from cutaway.engine.scheduler import Scheduler
from cutaway.engine.sequence import Sequence
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.sampler import PendingDraws, Sampled, begin_plain


@dataclass(frozen=True)
class _Begun:
    """A step that the device has: the place of each sequence among its rows."""

    rows: Mapping[Sequence, int]
    starts: Mapping[Sequence, tuple[int, int]]  # the token's position, and preemptions until then
    drawing: PendingDraws
    bucket: int | None


class Ahead:
    """Computes steps, and begins the next one where it is a decode step of the same sequences.

    num_begun, num_taken: of steps since the start.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner, self._scheduler = runner, scheduler
        self._begun: _Begun | None = None
        self.num_begun = 0
        self.num_taken = 0

    def compute(
        self, batch: Batch, answers: Mapping[Sequence, Running]
    ) -> tuple[list[list[Sampled]], float]:
        """What is drawn for each scheduled sequence, and when the forward was handed over."""
        begun, self._begun = self._begun, None
        indices = None if begun is None else self._places(begun, batch)
        if begun is not None and indices is not None:
            self.num_taken += 1
            self._runner.kernel = "graph"
            drawing, counts = begun.drawing, [1] * len(indices)
        else:
            logits = self._runner.run(batch)
            score_prompts(batch, logits, answers)
            logits, rows, counts = select_rows(batch, logits, answers)
            drawing, indices = begin_plain(logits, rows), list(range(len(rows)))
        computed = perf_counter()
        self._begin(batch, drawing, indices, answers)
        drawn = iter(drawing.read(indices))
        return [[next(drawn) for _ in range(count)] for count in counts], computed

    def _places(self, begun: _Begun, batch: Batch) -> list[int] | None:
        """Where the batch's sequences stand in the step that was begun; None if it is another."""
        if self._runner.bucket(len(batch.scheduled)) != begun.bucket:
            return None  # a replay of what is recorded would run in another shape
        for item in batch.scheduled:
            start = (item.start, item.sequence.num_preemptions)
            is_decode = item.count == 1 and item.samples and not item.num_drafts
            if not is_decode or begun.starts.get(item.sequence) != start:
                return None
        return [begun.rows[item.sequence] for item in batch.scheduled]

    def _begin(
        self,
        batch: Batch,
        drawing: PendingDraws,
        indices: list[int],
        answers: Mapping[Sequence, Running],
    ) -> None:
        """Hand the next step over, if it is known but for its tokens."""
        running = self._scheduler.running
        if self._scheduler.num_waiting or len(running) != len(batch.scheduled):
            return
        sequences: list[Sequence] = []
        rows: list[SamplerRow] = []
        places: list[int] = []
        for item, place in zip(batch.scheduled, indices, strict=False):
            if not item.samples or item.num_drafts:
                return
            sequence = item.sequence
            num_tokens = item.start + item.count
            if num_tokens + 1 >= sequence.max_length:
                continue  # the token that is being drawn is its last
            row, tables = answers[sequence].row_ahead(), sequence.tables
            assert tables is not None, "a scheduled sequence has tables"
            if row is None or not self._scheduler.cache.reserve(tables, num_tokens + 1):
                return
            sequences.append(sequence)
            rows.append(row)
            places.append(place)
        bucket = self._runner.bucket(len(sequences)) if sequences else None
        if bucket is None:
            return
        numbers = _numbers(sequences, [row.position - 1 for row in rows])
        logits = self._runner.run_ahead(numbers, drawing.token_ids(places))
        pairs = zip(sequences, numbers.positions, strict=True)
        self._begun = _Begun(
            {sequence: row for row, sequence in enumerate(sequences)},
            {each: (position, each.num_preemptions) for each, position in pairs},
            begin_plain(logits, rows),
            bucket,
        )
        self.num_begun += 1


def _numbers(sequences: list[Sequence], positions: list[int]) -> Numbers:
    """A decode step of the tokens at some positions; their ids stand for nothing."""
    tables = [each.tables for each in sequences]
    pages: list[list[list[int]]] = []
    slots: list[list[int]] = []
    assert tables[0] is not None, "a running sequence has tables"
    for group in range(len(tables[0].groups)):
        its = [each.groups[group] for each in tables if each is not None]
        pages.append([table.pages for table in its])
        ends = zip(its, positions, strict=True)
        slots.append([table.slots(position, 1)[0] for table, position in ends])
    count = len(sequences)
    return Numbers(
        token_ids=[0] * count,
        positions=positions,
        declared_lengths=[each.max_length for each in sequences],
        logit_rows=range(count),
        plan=ShapePlan((1,) * count, tuple(position + 1 for position in positions)),
        pages=pages,
        slots=slots,
    )
