"""Writes down what the engine does: for each step its shape, for each token what it was drawn from.

Free of torch. It is told; it asks nothing of the device. Its own time is counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from time import perf_counter

from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.output import Delta, ToldChoice
from cutaway.engine.batch import Batch
from cutaway.engine.scheduler import Scheduled
from cutaway.engine.sequence import Sequence
from cutaway.sampling.sampler import Sampled
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import (
    NOBODY,
    Admission,
    AnswerRecord,
    Origin,
    Part,
    Parts,
    Seam,
    StepRecord,
)


@dataclass(eq=False)
class _Open:
    """An answer that is being made: its record, and its latest admission."""

    record: AnswerRecord
    number: int
    admission: Admission = field(default_factory=lambda: Admission(0, ()))
    num_preemptions: int = -1  # at that admission; none was seen yet


class _Company:
    """Who decoded side by side in a step: while nobody comes or goes, the next says nothing new.

    scheduled: of the step.   answers: their numbers.   steps: of the admission of each.
    """

    def __init__(
        self,
        scheduled: Items[Scheduled] = (),
        answers: Items[int] = (),
        steps: Items[list[int]] = (),
    ) -> None:
        self._sequences = [item.sequence for item in scheduled]
        self._preempted = [sequence.num_preemptions for sequence in self._sequences]
        self._next = array("i", [item.start + item.count for item in scheduled])
        self._answers, self._steps = array("q", answers), steps
        self._ones = array("i", [1]) * len(scheduled)

    def go_on(self, number: int, scheduled: Items[Scheduled]) -> Parts | None:
        """The parts of a step in which each decodes one token more; None for any other step."""
        if len(scheduled) != len(self._sequences):
            return None
        if [item.sequence for item in scheduled] != self._sequences:
            return None
        starts = array("i", [item.start for item in scheduled])
        is_plain = all([item.count == 1 and item.samples for item in scheduled])
        if not is_plain or starts != self._next or any([item.num_drafts for item in scheduled]):
            return None
        if [sequence.num_preemptions for sequence in self._sequences] != self._preempted:
            return None
        for steps in self._steps:
            steps.append(number)
        self._next = array("i", [start + 1 for start in starts])
        return Parts(self._answers, starts, self._ones, self._ones, {})

    def begin_pages(self, page_size: int) -> list[int]:
        """The rows of the latest step that begin a page."""
        return [row for row, past in enumerate(self._next) if not (past - 1) % page_size]


class Recorder:
    """Fills a ledger while the engine runs.

    seconds: spent in here since the start.
    """

    def __init__(self, ledger: Ledger, *, page_size: int) -> None:
        self.ledger = ledger
        self.seconds = 0.0
        self._page_size = page_size
        self._open: dict[Sequence, _Open] = {}
        self._writers: dict[tuple[int, int], Origin] = {}  # by group and page
        self._parts: Items[Part] = ()
        self._company = _Company()

    def open_answer(self, sequence: Sequence, *, arrived: float) -> None:
        """Open the record of an answer that was queued.

        Units: arrived in seconds of perf_counter.
        """
        request = sequence.request
        if request.continued_token_ids:  # recorded as what was given
            prompt = (*request.prompt_token_ids, *request.continued_token_ids)
            request = replace(request, prompt_token_ids=prompt, continued_token_ids=())
        record = self.ledger.open(
            request,
            choice=sequence.choice,
            seed=sequence.seed,
            max_length=sequence.max_length,
            cache_root=sequence.cache_root,
            arrived=arrived,
            load_id=sequence.load_id,
        )
        record.num_continued = len(sequence.request.continued_token_ids)
        self._open[sequence] = _Open(record, record.number)

    def number_of(self, sequence: Sequence) -> int:
        """By which the ledger knows an answer that has not ended."""
        return self._open[sequence].number

    def forget_writers(self, pages: Items[tuple[int, int]]) -> None:
        """Pages of these groups hold what came from elsewhere: who wrote it is not known."""
        for each in pages:
            self._writers.pop(each, None)

    def note_plan(self, number: int, batch: Batch) -> None:
        """Note the parts of a step that is about to run, and who gets and writes which pages."""
        began = perf_counter()
        parts = self._company.go_on(number, batch.scheduled)
        if parts is None:
            self._note_anew(number, batch)
        else:
            self._parts = parts
            for row in self._company.begin_pages(self._page_size):
                item = batch.scheduled[row]
                open_ = self._open[item.sequence]
                self._note_writes(item, Origin(open_.number, len(open_.record.admissions) - 1))
        self.seconds += perf_counter() - began

    def _note_anew(self, number: int, batch: Batch) -> None:
        answers: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        drafts: dict[int, tuple[int, ...]] = {}
        chances: dict[int, tuple[float, ...]] = {}
        num_rows: list[int] = []
        for rows, item in zip(batch.rows, batch.scheduled, strict=True):
            sequence, start, count = item.sequence, item.start, item.count
            if item.took_other:  # the way that was not taken stands before
                answers.append(NOBODY)
                starts.append(start)
                counts.append(count)
                num_rows.append(count)
            index = len(answers)
            open_ = self._open[sequence]
            if open_.num_preemptions != sequence.num_preemptions:
                open_.num_preemptions = sequence.num_preemptions
                open_.admission = self._admission(item)
                open_.record.admissions.append(open_.admission)
            open_.admission.steps.append(number)
            if count > 1 or start % self._page_size == 0:  # else its page was noted before
                self._note_writes(item, Origin(open_.number, len(open_.record.admissions) - 1))
            if item.num_drafts:
                drafts[index] = tuple(sequence.draft_token_ids[: item.num_drafts])
                if sequence.draft_chances:
                    chances[index] = tuple(sequence.draft_chances[: item.num_drafts])
            answers.append(open_.number)
            starts.append(start)
            counts.append(count)
            num_rows.append(len(rows) - item.num_other)
            if item.is_forked and not item.took_other:
                answers.append(NOBODY)
                starts.append(start)
                counts.append(count)
                num_rows.append(count)
        self._parts = Parts(answers, starts, counts, num_rows, drafts, chances)
        opened = [self._open[item.sequence].admission.steps for item in batch.scheduled]
        self._company = _Company(batch.scheduled, answers, opened)

    def add_tokens(
        self, number: int, sequence: Sequence, taken: Items[int], drawn: Items[Sampled]
    ) -> None:
        """Add the tokens that became part of an answer."""
        began = perf_counter()
        tokens, row, num_top = self._open[sequence].record.tokens, 0, 0
        for token_id in taken:
            _, u, (logit, logsumexp, _, rank, top), checksum, residual = drawn[row]
            tokens.append(
                (token_id, number, row, u, logit, logsumexp, checksum, rank, top, residual)
            )
            row += 1
            num_top += len(top)
        self.ledger.note_tokens(row, num_top)
        self.seconds += perf_counter() - began

    def add_told(
        self, number: int, sequence: Sequence, told: ToldChoice, *, is_exact: bool
    ) -> None:
        """Add the tokens that another engine told of an answer, which goes on with this step."""
        began = perf_counter()
        record = self._open[sequence].record
        record.seam = Seam(len(told.token_ids), is_exact)
        for row, (token_id, draw) in enumerate(zip(told.token_ids, told.draws, strict=True)):
            u, logit, logsumexp, checksum = draw
            self.ledger.add_token(
                record, (token_id, number, row, u, logit, logsumexp, checksum, None, (), None)
            )
        self.seconds += perf_counter() - began

    def end_step(self, number: int, *, kernel: str, began: float, computed: float) -> None:
        """Record a step that has run and whose tokens were taken."""
        ended = perf_counter()
        self.ledger.add_step(StepRecord(number, self._parts, kernel, began, computed, ended))
        self.seconds += perf_counter() - ended

    def close_answer(self, sequence: Sequence, last: Delta) -> None:
        """Close the record of an answer that is over; its last delta says why."""
        assert last.finish_reason is not None, "an answer ends for a reason"
        record = self._open.pop(sequence).record
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
