"""Writes down what the engine does: for each step its shape, for each token what it was drawn from.

Free of torch. It is told; it asks nothing of the device. Its own time is counted.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from time import perf_counter

from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.output import Delta
from cutaway.engine.batch import Batch
from cutaway.engine.scheduler import Scheduled
from cutaway.engine.sequence import Sequence
from cutaway.sampling.sampler import Sampled
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import Admission, AnswerRecord, Origin, Part, StepRecord, TokenRecord


class Recorder:
    """Fills a ledger while the engine runs.

    seconds: spent in here since the start.
    """

    def __init__(self, ledger: Ledger, *, page_size: int) -> None:
        self.ledger = ledger
        self.seconds = 0.0
        self._page_size = page_size
        self._records: dict[Sequence, AnswerRecord] = {}
        self._admissions: dict[Sequence, int] = {}  # preemptions that were seen
        self._writers: dict[tuple[int, int], Origin] = {}  # by group and page
        self._parts: tuple[Part, ...] = ()

    def open_answer(self, sequence: Sequence, *, arrived: float) -> None:
        """Open the record of an answer that was queued.

        Units: arrived in seconds of perf_counter.
        """
        self._records[sequence] = self.ledger.open(
            sequence.request,
            choice=sequence.choice,
            seed=sequence.seed,
            max_length=sequence.max_length,
            cache_root=sequence.cache_root,
            arrived=arrived,
        )

    def number_of(self, sequence: Sequence) -> int:
        """By which the ledger knows an answer that has not ended."""
        return self._records[sequence].number

    def note_plan(self, number: int, batch: Batch) -> None:
        """Note the parts of a step that is about to run, and who gets and writes which pages."""
        began = perf_counter()
        parts: list[Part] = []
        for item, rows in zip(batch.scheduled, batch.rows, strict=True):
            record = self._records[item.sequence]
            if self._admissions.get(item.sequence) != item.sequence.num_preemptions:
                self._admissions[item.sequence] = item.sequence.num_preemptions
                record.admissions.append(self._admission(item))
            record.admissions[-1].steps.append(number)
            self._note_writes(item, Origin(record.number, len(record.admissions) - 1))
            drafts = tuple(item.sequence.draft_token_ids[: item.num_drafts])
            parts.append(Part(record.number, item.start, item.count, drafts, len(rows)))
        self._parts = tuple(parts)
        self.seconds += perf_counter() - began

    def add_tokens(
        self, number: int, sequence: Sequence, taken: Items[int], drawn: Items[Sampled]
    ) -> None:
        """Add the tokens that became part of an answer."""
        began = perf_counter()
        record = self._records[sequence]
        for row, (token_id, each) in enumerate(zip(taken, drawn, strict=False)):
            score = each.score
            token = TokenRecord(
                token_id,
                number,
                row,
                each.u,
                score.logit,
                score.logsumexp,
                each.checksum,
                score.rank,
                score.top,
            )
            self.ledger.add_token(record, token)
        self.seconds += perf_counter() - began

    def end_step(self, number: int, *, kernel: str, began: float, computed: float) -> None:
        """Record a step that has run and whose tokens were taken."""
        ended = perf_counter()
        self.ledger.add_step(StepRecord(number, self._parts, kernel, began, computed, ended))
        self.seconds += perf_counter() - ended

    def close_answer(self, sequence: Sequence, last: Delta) -> None:
        """Close the record of an answer that is over; its last delta says why."""
        assert last.finish_reason is not None, "an answer ends for a reason"
        self._admissions.pop(sequence, None)
        record = self._records.pop(sequence)
        self.ledger.close(record, reason=last.finish_reason, usage=last.usage, timings=last.timings)

    def _admission(self, item: Scheduled) -> Admission:
        """Who wrote the pages that were found for a sequence that starts at item.start."""
        tables = item.sequence.tables
        assert tables is not None, "a scheduled sequence has tables"
        origins: list[Origin | None] = []
        for index in range(item.start // self._page_size):
            pages = ((group, table.pages[index]) for group, table in enumerate(tables.groups))
            writers = {self._writers.get(page) for page in pages if page[1] != SCRATCH_PAGE}
            origins.append(writers.pop() if len(writers) == 1 else None)
        return Admission(item.start, tuple(origins))

    def _note_writes(self, item: Scheduled, writer: Origin) -> None:
        tables = item.sequence.tables
        assert tables is not None, "a scheduled sequence has tables"
        first = item.start // self._page_size
        past = -(-(item.start + item.count) // self._page_size)
        for group, table in enumerate(tables.groups):
            for page in table.pages[first:past]:
                self._writers[group, page] = writer
