"""The next step, handed to a GPU before the host has told of this one.

A decode step is begun before the host knows the tokens of this one: its token ids are what the
sampler leaves on the device; all else of it is known: places, pages, lengths, and the numbers of
its draws. While the GPU computes it, the host reads this step's tokens and tells them. Then it
takes what was begun, without those that ended meanwhile: whoever came in the meantime starts a step
later.

A step with guesses hangs on what was said. It is launched once the tokens are read, and they are
told while the GPU computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from torch import Tensor

from cutaway.engine.batch import Batch
from cutaway.engine.draws import (
    SequenceDraws,
    await_tokens,
    score_prompts,
    select_rows,
    verify_guesses,
)
from cutaway.engine.lanes import Lanes
from cutaway.engine.runner import Runner
from cutaway.engine.running import Running
from cutaway.engine.scheduler import Scheduled, Scheduler
from cutaway.engine.sequence import Sequence
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.sampler import PendingDraws, begin_plain


@dataclass(frozen=True)
class _Begun:
    """A step that the device has: the place of each sequence among its rows."""

    lanes: Lanes
    starts: list[int]  # position of each row's token
    drawing: PendingDraws
    bucket: int


@dataclass(frozen=True)
class _Launched:
    """A step of known tokens that the device has, draws and all, and what reads its draws.

    counts: rows of each scheduled sequence.   Shapes: logits [R, V].
    """

    batch: Batch
    logits: Tensor
    rows: list[SamplerRow]
    counts: list[int]
    drawing: PendingDraws


class Ahead:
    """Computes steps, and begins the next one where it is a decode step of the same sequences.

    num_begun, num_taken: of steps since the start.   num_launched: those of known tokens.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner, self._scheduler = runner, scheduler
        self._begun: _Begun | None = None
        self._launched: _Launched | None = None
        self.is_held = False  # no step is begun early
        self.num_begun = 0
        self.num_taken = 0
        self.num_launched = 0

    @property
    def has_begun(self) -> bool:
        """Whether the device has the next step."""
        return self._begun is not None

    def plan(self) -> list[Scheduled]:
        """The step that was begun, without those that have left it since; empty without one."""
        if self._begun is None:
            return []
        return self._scheduler.go_on(self._begun.lanes.sequences, self._begun.starts)

    def launch(self, batch: Batch, answers: Mapping[Sequence, Running]) -> None:
        """Hand over a step whose tokens are known; compute() then waits for its draws."""
        assert self._begun is None, "one step is ahead at most"
        self._launched = self._hand_over_known(batch, answers)
        self.num_launched += 1

    def batch_launched(self, scheduled: Items[Scheduled]) -> Batch | None:
        """The batch of these very tokens, if the device has it."""
        batch = None if self._launched is None else self._launched.batch
        if batch is None or len(batch.scheduled) != len(scheduled):
            return None
        is_same = all(a is b for a, b in zip(batch.scheduled, scheduled, strict=True))
        return batch if is_same else None

    def compute(
        self, batch: Batch, answers: Mapping[Sequence, Running]
    ) -> tuple[list[SequenceDraws], float]:
        """What is drawn for each scheduled sequence, and when the forward was handed over."""
        begun, self._begun = self._begun, None
        indices = None if begun is None else self._places(begun, batch)
        if begun is not None and indices is not None:
            self.num_taken += 1
            self._runner.kernel = "graph"
            drawing = begun.drawing
            computed = perf_counter()
            self._go_on(begun, indices, len(batch.scheduled), answers)
            drawn = [SequenceDraws([each.token_id], [each]) for each in drawing.read(indices)]
            return drawn, computed
        launched, self._launched = self._launched, None
        if launched is None or launched.batch is not batch:
            launched = self._hand_over_known(batch, answers)
        computed = perf_counter()
        drawing = launched.drawing
        self._start(batch, drawing, answers)
        if not any(
            [item.is_forked or answers[item.sequence].proposals for item in batch.scheduled]
        ):
            return await_tokens(drawing, launched.counts), computed
        drawn, rows, counts = drawing.read(), launched.rows, launched.counts
        return verify_guesses(batch, launched.logits, rows, counts, drawn, answers), computed

    def _hand_over_known(self, batch: Batch, answers: Mapping[Sequence, Running]) -> _Launched:
        logits = self._runner.run(batch)
        score_prompts(batch, logits, answers)
        logits, rows, counts = select_rows(batch, logits, answers)
        return _Launched(batch, logits, rows, counts, begin_plain(logits, rows))

    def _places(self, begun: _Begun, batch: Batch) -> list[int] | None:
        """Where the batch's sequences stand in the step that was begun; None if it is another."""
        if self._runner.bucket(len(batch.scheduled)) != begun.bucket:
            return None  # a replay of what is recorded would run in another shape
        rows, starts = begun.lanes.rows, begun.starts
        places: list[int] = []
        for item in batch.scheduled:
            row = rows.get(item.sequence)
            if row is None or item.count != 1 or item.start != starts[row] or not item.samples:
                return None
            places.append(row)
        return places

    def keeps_company(self, num_scheduled: int) -> bool:
        """Whether the next step is known to hold nobody beside those of this one."""
        scheduler = self._scheduler
        return scheduler.num_running == num_scheduled and not scheduler.may_admit

    def _may_begin(self, num_scheduled: int) -> bool:
        return not self.is_held and self.keeps_company(num_scheduled)

    def _start(
        self, batch: Batch, drawing: PendingDraws, answers: Mapping[Sequence, Running]
    ) -> None:
        """Hand over the step that follows one that was not begun itself."""
        if not self._may_begin(len(batch.scheduled)):
            return
        entries: list[tuple[Sequence, int, int]] = []
        for place, item in enumerate(batch.scheduled):
            if not item.samples or item.num_drafts:
                return
            position = item.start + item.count
            if position + 1 < item.sequence.max_length:  # else what is being drawn is its last
                entries.append((item.sequence, position, place))
        if not entries:
            return
        # The longest first: on the device the last to run are then short ones.
        entries.sort(key=lambda entry: -entry[1])
        lanes = Lanes(
            [sequence for sequence, _, _ in entries],
            np.array([position for _, position, _ in entries]),
        )
        if lanes.reserve(self._scheduler.cache):
            self._hand_over(lanes, drawing, [place for _, _, place in entries], answers)

    def _go_on(
        self,
        begun: _Begun,
        indices: list[int],
        num_scheduled: int,
        answers: Mapping[Sequence, Running],
    ) -> None:
        """Hand over the step that follows one that was begun, of the rows that go on."""
        if not self._may_begin(num_scheduled):
            return
        lanes, places = begun.lanes.following(indices)
        if places and lanes.advance(self._scheduler.cache):
            self._hand_over(lanes, begun.drawing, places, answers)

    def _hand_over(
        self,
        lanes: Lanes,
        drawing: PendingDraws,
        places: list[int],
        answers: Mapping[Sequence, Running],
    ) -> None:
        """Begin a step of some lanes, whose tokens stand at some places of what is being drawn."""
        bucket = self._runner.bucket(len(places))
        if bucket is None or not lanes.may_draw(answers):
            return
        logits = self._runner.run_ahead(lanes.numbers, drawing.token_ids(places))
        drawing = lanes.draw(logits, answers, self._runner.draws(bucket))
        self._begun = _Begun(lanes, lanes.starts, drawing, bucket)
        self.num_begun += 1
