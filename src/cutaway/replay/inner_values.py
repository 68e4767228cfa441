"""Inner values of a replay, kept where somebody wants them: who reads which step, and how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutaway.core.facts import ModelFacts
from cutaway.core.step import Sink
from cutaway.replay.plan import ReplayPlan, Run
from cutaway.views.parts.replay_values import Proof, ReplayValues, Wanted

# Numbers per position and layer that a tap has; names that are not here have the model's width.
_WIDTHS: Mapping[str, Callable[[ModelFacts], int]] = {
    "blocks.attention.query": lambda facts: facts.num_heads * facts.head_size,
    "blocks.attention.key": lambda facts: facts.num_groups * facts.head_size,
    "blocks.attention.value": lambda facts: facts.num_groups * facts.head_size,
    "blocks.attention.mixed": lambda facts: facts.num_heads * facts.head_size,
    "blocks.mlp.product": lambda facts: facts.inner,
}


@dataclass(eq=False)
class TapReader:
    """Keeps what is wanted of what taps say; the last word on a position counts.

    A draft that was refused leaves nothing: the right token came to its place later.
    """

    wanted: Wanted
    values: dict[tuple[str, int | None], Tensor] = field(
        default_factory=dict[tuple[str, int | None], Tensor]
    )

    def sink_of(self, run: Run) -> Sink:
        """For a run that computes some of the wanted positions."""
        first = sum(part.count for part in run.step.parts[: run.at])
        start, end = max(run.part.start, self.wanted.start), min(run.part.end, self.wanted.end)
        rows = slice(first + start - run.part.start, first + end - run.part.start)

        def read(name: str, value: Tensor, layer: int | None) -> None:
            if name in self.wanted.taps and (layer is None or layer in self.wanted.layers):
                place = self._place(name, layer, value)
                place[start - self.wanted.start : end - self.wanted.start] = value[rows]

        return read

    def _place(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        key = (name, layer)
        if key not in self.values:
            count = self.wanted.end - self.wanted.start
            dtype = torch.promote_types(value.dtype, torch.float32)
            if not value.is_floating_point():
                dtype = value.dtype
            self.values[key] = value.new_zeros((count, *value.shape[1:]), dtype=dtype)
        return self.values[key]

    def collect(
        self,
        proof: Proof,
        stored: Mapping[int, Mapping[str, Tensor]],
        rows: Mapping[int, Tensor],
    ) -> ReplayValues:
        """What was read, with its share of what layers stored and of the rows."""
        wanted = self.wanted
        entries = {
            layer: {name: each[: wanted.end] for name, each in stored[layer].items()}
            for layer in wanted.stored
        }
        own = {index: row for index, row in rows.items() if index in wanted.rows}
        return ReplayValues(wanted, proof, self.values, entries, own)


@dataclass
class Sinks:
    """One sink for all readers that a run concerns."""

    readers: Sequence[TapReader]
    page_size: int
    plan: ReplayPlan | None = None

    def sink_of(self, run: Run) -> Sink | None:
        """A sink for all readers that a run concerns; None if it concerns none."""
        plan, size = self.plan, self.page_size
        assert plan is not None, "a replay has a plan"
        sinks = [
            reader.sink_of(run)
            for reader in self.readers
            if _touches(plan, run, reader.wanted, size)
        ]

        def read(name: str, value: Tensor, layer: int | None) -> None:
            for sink in sinks:
                sink(name, value, layer)

        return read if sinks else None


def num_runs(plan: ReplayPlan, wanted: Wanted, page_size: int) -> int:
    """How many runs of the plan it takes, up to the first row behind that can be compared."""
    last = 0
    everything = replace(wanted, start=0) if wanted.stored else wanted
    for index, run in enumerate(plan.runs):
        is_row = any(drawn.index in wanted.rows for drawn in run.drawn)
        if is_row or _touches(plan, run, everything, page_size):
            last = index
    while not plan.runs[last].drawn and last + 1 < len(plan.runs):
        last += 1
    return last + 1


def num_bytes(wanted: Wanted, facts: ModelFacts) -> int:
    """Memory that what is wanted takes, in float32."""
    widths = (_WIDTHS.get(name, lambda facts: facts.width)(facts) for name in wanted.taps)
    taps = sum(widths) * (wanted.end - wanted.start) * max(1, len(wanted.layers))
    stored = len(wanted.stored) * wanted.end * 2 * facts.num_groups * facts.head_size
    return 4 * (taps + stored + len(wanted.rows) * facts.vocab_size)


def _touches(plan: ReplayPlan, run: Run, wanted: Wanted, page_size: int) -> bool:
    """Whether a run computes wanted positions of the answer: its own, or those of its prefix."""
    start, end = max(run.part.start, wanted.start), min(run.part.end, wanted.end)
    if start >= end:
        return False
    if run.writer.answer == plan.answer.number:
        return True
    ours, theirs = plan.tables[plan.final], plan.tables[run.writer]
    places = range(start // page_size, (end - 1) // page_size + 1)
    return any(p < len(ours) and p < len(theirs) and ours[p] == theirs[p] for p in places)
