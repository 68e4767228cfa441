"""Captured steps with prompts on a GPU: sequences with one token each, and chunks behind them.

A prompt of 256 tokens beside 100 answers computes for some milliseconds, and the launches of its
kernels take the host several times as long. So steps with few tokens of prompts have graphs of
their own: buckets of sequences with one token, and of tokens of all chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.step import GroupTables, LayerCache, Numbers, ShapePlan, Sink, Step
from cutaway.engine.captured.static_step import change_tables
from cutaway.host.garbage import stop_collecting

# Tokens of prompts in a captured step at most: with more the GPU takes longer than the launches.
CAPTURED_CHUNK_TOKENS = 1024
_ALONE, _CHUNK_TOKENS = (16, 64, 128, 256), (64, 256, 512, 1024)
_CHUNKS = 9  # of a step, the padding among them
# Keys of all chunks, up to which attention is short beside the rest in any form.
_MOST_KEYS = 1 << 13

_ALIGNED = 16  # entries: kernels are compiled for aligned addresses
_PADDING = (0, 0, 1)  # of token ids, positions, declared lengths; slots have 0
_LENGTH = 1  # of the context of a sequence that is padding

_NONE: list[int] = []  # pages of a row that is padding


def record_graph(
    run: Callable[[], Tensor], pool: Any, *, has_ranks: bool
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of a call, and what the call gives; the call runs once before.

    pool: of torch's graphs.   has_ranks: whether the call waits for other ranks of the model.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries set themselves up outside the graph
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # NCCL has threads of its own, whose calls are no part of the step.
    mode = "thread_local" if has_ranks else "global"
    # Graphs that nobody has any more must not be freed meanwhile: that would end the capture.
    with stop_collecting(), torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
        given = run()
    return graph, given


class MixedShape(NamedTuple):
    """Sequences that bring one token, and tokens of chunks behind them, of a captured step."""

    alone: int
    chunk_tokens: int

    @property
    def rows(self) -> int:
        """Rows of logits that such a step may want."""
        return self.alone + _CHUNKS


def mixed_shapes(max_sequences: int, max_tokens: int, longest: int) -> tuple[MixedShape, ...]:
    """Shapes that steps of so much need, the largest last; none where nothing is captured.

    longest: tokens that one sequence may have. Padding is a sequence too, of up to all tokens of
    chunks: with fewer in its tables it would attend to what lies in front of them.
    """
    most = min(max_tokens, CAPTURED_CHUNK_TOKENS)
    if not most:
        return ()
    return tuple(
        MixedShape(count, tokens)
        for tokens in _up_to(most, _CHUNK_TOKENS)
        for count in _up_to(max_sequences, _ALONE)
        if tokens <= longest
    )


def _up_to(most: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    past = next((i for i, size in enumerate(sizes) if size >= most), len(sizes))
    return sizes[: past + 1]


def shape_of(numbers: Numbers, shapes: Sequence[MixedShape]) -> MixedShape | None:
    """The captured shape that a step with prompts fits into; None where it runs eagerly.

    It follows from the step's own shape alone, which a replay has too.
    """
    lengths = numbers.plan.query_lengths
    count = num_alone(lengths)
    chunks, keys = lengths[count:], sum(numbers.plan.context_lengths[count:])
    if not 0 < len(chunks) < _CHUNKS or 1 in chunks or keys > _MOST_KEYS:
        return None
    ends = {end - 1 for end in numbers.query_starts[1:]}
    if len(numbers.logit_rows) > len(lengths) or not ends.issuperset(numbers.logit_rows):
        return None  # prompts are scored, or guesses verified
    tokens = sum(chunks)
    return next((s for s in shapes if s.alone >= count and s.chunk_tokens >= tokens), None)


def num_alone(query_lengths: Sequence[int]) -> int:
    """How many sequences at the front bring one token."""
    return next((i for i, length in enumerate(query_lengths) if length != 1), len(query_lengths))


class MixedGraphs:
    """Runs a step with prompts by replaying a graph.

    shapes: for which there are graphs.   max_pages: of one sequence, in any cache group.
    pool: of torch's graphs.
    """

    def __init__(
        self,
        model: Transformer,
        caches: tuple[LayerCache, ...],
        *,
        device: torch.device,
        shapes: tuple[MixedShape, ...],
        max_pages: int,
        pool: Any,
    ) -> None:
        self._model, self._shapes, self._pool = model, shapes, pool
        self._steps = MixedSteps(
            caches,
            alone=max(shape.alone for shape in shapes),
            chunk_tokens=max(shape.chunk_tokens for shape in shapes),
            chunks=_CHUNKS,
            width=max_pages,
            num_groups=1 + max(cache.group for cache in caches),
            device=device,
        )
        self._graphs: dict[MixedShape, torch.cuda.CUDAGraph] = {}
        self._logits: Tensor | None = None  # of whichever ran last

    @property
    def num_captured(self) -> int:
        """Graphs that there are."""
        return len(self._graphs)

    def prepare(self) -> None:
        """Capture every shape, the largest first."""
        for shape in reversed(self._shapes):
            self._graph(shape)

    def fits(self, numbers: Numbers) -> bool:
        """Whether a graph can stand for the step."""
        return not numbers.adapters and shape_of(numbers, self._shapes) is not None

    def step(self, numbers: Numbers) -> Step:
        """The tensors over which a step that fits is computed; it was run before."""
        shape = shape_of(numbers, self._shapes)
        assert shape is not None, "a step that fits has a shape"
        return self._steps.step(shape)

    def run(self, numbers: Numbers, sink: Sink | None) -> Tensor:
        """Logits of the rows that the step wants. Shapes: [R, V], valid until the next run.

        With a sink the very kernel calls of the graph are made one by one.
        """
        shape = shape_of(numbers, self._shapes)
        assert shape is not None, "a step that fits has a shape"
        wanted = len(numbers.logit_rows)
        if sink is not None:
            step = self._steps.step(shape)
            self._steps.fill(numbers, shape)
            return self._model(replace(step, sink=_reading(sink, numbers, shape)))[:wanted]
        graph = self._graph(shape)
        assert self._logits is not None, "a place for them is there with the first graph"
        self._steps.fill(numbers, shape)
        graph.replay()
        return self._logits[:wanted]

    def _graph(self, shape: MixedShape) -> torch.cuda.CUDAGraph:
        if shape not in self._graphs:
            step = self._steps.step(shape)
            self._graphs[shape], _ = record_graph(
                lambda: self._leave_logits(step),
                self._pool,
                has_ranks=self._model.group is not None,
            )
        return self._graphs[shape]

    def _leave_logits(self, step: Step) -> Tensor:
        """Compute a step and copy its logits, so that no graph keeps its own."""
        logits, kept = self._model(step), self._logits
        if kept is None:
            rows = max(shape.rows for shape in self._shapes)
            kept = self._logits = logits.new_zeros(rows, logits.shape[1])
        return kept[: len(logits)].copy_(logits)


def _reading(sink: Sink, numbers: Numbers, shape: MixedShape) -> Sink:
    """What shows a sink a step's own rows, without the padding."""
    count = num_alone(numbers.plan.query_lengths)
    used, wanted = len(numbers.token_ids) - count, len(numbers.logit_rows)

    def read(name: str, value: Tensor, layer: int | None) -> None:
        if len(value) == shape.rows:
            sink(name, value[:wanted], layer)
        else:
            of_chunks = value[shape.alone : shape.alone + used]
            sink(name, torch.cat((value[:count], of_chunks)), layer)

    return read


class _Room:
    """Numbers of a step and page tables of its sequences, on both sides.

    parts: kinds of numbers, of so many entries each.   rows: of every table.
    """

    def __init__(
        self, *, parts: int, entries: int, rows: int, width: int, groups: int, device: torch.device
    ) -> None:
        room, table_room = (-(-count // _ALIGNED) * _ALIGNED for count in (entries, rows))
        self._first_table = parts * room
        self._row = groups * table_room  # one page of all sequences and groups
        size = self._first_table + width * self._row
        pinned = torch.zeros(size, dtype=torch.int64)
        if device.type == "cuda":
            pinned = pinned.pin_memory()
        self._device, self._pinned = torch.zeros_like(pinned, device=device), pinned
        self.numbers: NDArray[np.int64] = pinned[: self._first_table].view(parts, room).numpy()
        self._tables = pinned[self._first_table :].view(width, groups, table_room).numpy()
        self._written: list[list[list[int]]] = [[_NONE] * rows for _ in range(groups)]
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self.sent = self._device[: self._first_table].view(parts, room)
        self._sent_tables = self._device[self._first_table :].view(width, groups, table_room)

    def tables(self, group: int, rows: int) -> Tensor:
        """The first page tables of a group, on the device. Shapes: [rows, width]."""
        return self._sent_tables[:, group, :rows].T

    def wait(self) -> None:
        """Until the copy of the step before is done, which has long been read."""
        if self._copied is not None:
            self._copied.synchronize()

    def change(self, group: int, pages: Sequence[Sequence[int]]) -> None:
        """Write the tables of a group whose pages are others; those behind the last have none."""
        change_tables(self._tables[:, group], self._written[group], pages)

    def send(self, width: int) -> None:
        """Copy the numbers and so many pages of every table."""
        size = self._first_table + width * self._row
        self._device[:size].copy_(self._pinned[:size], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class MixedSteps:
    """Room for steps of sequences with one token each, and of chunks of prompts behind them.

    Steps of every shape up to the largest lie at the same place. Rows behind the last chunk are
    one more of their own, over the scratch page; wanted rows of logits come first.

    alone, chunk_tokens: of the largest.   chunks: at most, the padding among them.
    """

    def __init__(
        self,
        caches: tuple[LayerCache, ...],
        *,
        alone: int,
        chunk_tokens: int,
        chunks: int,
        width: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        self._caches, self._chunks, self._width = caches, chunks, width
        self._num_groups = num_groups
        of_tokens = len(_PADDING) + num_groups
        self._room = _Room(
            parts=of_tokens + 3,  # lengths, starts, rows
            entries=alone + max(chunk_tokens, chunks + 1),
            rows=alone + chunks,
            width=width,
            groups=num_groups,
            device=device,
        )
        numbers = self._room.numbers
        self._of_tokens = numbers[:of_tokens]
        self._lengths, self._starts, self._rows = numbers[of_tokens:]
        self._steps: dict[MixedShape, Step] = {}
        pages: list[list[list[int]]] = [[] for _ in range(num_groups)]
        self._empty = Numbers([], [], [], [], ShapePlan((), ()), pages, [_NONE] * num_groups)

    def step(self, shape: MixedShape) -> Step:
        """The step of a shape, which holds what was filled in last; padding at first."""
        if shape not in self._steps:
            self._steps[shape] = self._view(shape)
            self.fill(self._empty, shape)
        return self._steps[shape]

    def _view(self, shape: MixedShape) -> Step:
        alone, tokens = shape
        assert tokens <= self._width * self._caches[0].page_size, "padding has a place in its table"
        sequences = alone + self._chunks
        sent, kinds = self._room.sent, len(_PADDING)
        lengths, starts, rows = sent[kinds + self._num_groups :]
        # Kernels find in it the longest chunk that there may be, and who brings one token alone.
        plan = ShapePlan(
            (1,) * alone + (tokens,) * self._chunks, (1,) * sequences, bucket=sequences
        )
        return Step(
            token_ids=sent[0, : alone + tokens],
            positions=sent[1, : alone + tokens],
            declared_lengths=sent[2, : alone + tokens],
            query_starts=starts[: sequences + 1],
            context_lengths=lengths[:sequences],
            logit_rows=rows[:sequences],
            plan=plan,
            groups=tuple(
                GroupTables(
                    self._room.tables(group, sequences), sent[kinds + group, : alone + tokens]
                )
                for group in range(self._num_groups)
            ),
            caches=self._caches,
        )

    def fill(self, numbers: Numbers, shape: MixedShape) -> None:
        """Put a step in, in the places of a shape. The device is not waited for."""
        self._room.wait()
        alone, tokens = shape
        lengths, contexts = numbers.plan.query_lengths, numbers.plan.context_lengths
        count = num_alone(lengths)
        used, chunks = len(numbers.token_ids) - count, len(lengths) - count
        given = (numbers.token_ids, numbers.positions, numbers.declared_lengths, *numbers.slots)
        paddings = (*_PADDING, *[0] * self._num_groups)
        for part, values, padding in zip(self._of_tokens, given, paddings, strict=True):
            part[:count] = values[:count]
            part[count:alone] = padding
            part[alone : alone + used] = values[count:]
            part[alone + used : alone + tokens] = padding
        self._lengths[: alone + self._chunks] = _LENGTH
        self._lengths[:count] = contexts[:count]
        self._lengths[alone : alone + chunks] = contexts[count:]
        self._lengths[alone + chunks] = max(_LENGTH, tokens - used)
        self._starts[:alone] = np.arange(alone)
        self._starts[alone : alone + self._chunks + 1] = alone + tokens
        starts = accumulate(lengths[count:], initial=alone)
        self._starts[alone : alone + chunks + 1] = list(starts)
        wanted = [row if row < count else row - count + alone for row in numbers.logit_rows]
        self._rows[: alone + self._chunks] = 0
        self._rows[: len(wanted)] = wanted
        for group, pages in enumerate(numbers.pages):
            padded = [*pages[:count], *[_NONE] * (alone - count), *pages[count:]]
            self._room.change(group, padded)
        self._room.send(max((len(row) for pages in numbers.pages for row in pages), default=1))
