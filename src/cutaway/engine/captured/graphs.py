"""Captured small steps on a GPU: one CUDA graph per size, the same model code.

Sizes are buckets of sequences, one token each; and for guesses buckets of sequences, of all their
tokens, and of one sequence's tokens at most. Steps with prompts are in mixed_graphs.py. A graph
records the very kernel calls of the eager step, at the bucket's sizes, over static inputs. Rows
past the real ones are padding: they read and write the scratch page. All graphs share one pool of
memory: one runs at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.step import LayerCache, Numbers, Sink
from cutaway.engine.captured.mixed_graphs import MixedGraphs, mixed_shapes, record_graph
from cutaway.engine.captured.static_step import StaticStep
from cutaway.host.garbage import stop_collecting
from cutaway.sampling.captured_draws import CapturedDraws

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, *range(128, 257, 16))
# Where attention reads the whole table: widths double, so that a short context does not pay for
# the longest.
LEAST_PAGES = 16


# Steps with guesses: of how many sequences, of how many tokens in all, and of one's at most. A
# graph is a few hundred milliseconds' work, so there are few; up to 16 tokens a product takes as
# long as one of 4. Each of tokens is at most twice the one before, so that half are real.
_DRAFTED_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_DRAFTED_TOKENS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LENGTHS = (4, 8, 16)
# Sequences up to which steps with guesses are captured at the start, where guesses are made for
# everybody: with more at once they seldom pay, and a graph is captured when it is first wanted.
_PREPARED_SEQUENCES = 8


class _Size(NamedTuple):
    """What a graph is captured for.

    tokens: of all sequences; None for one each.   longest: tokens of one sequence at most.
    width: pages of the longest.
    """

    sequences: int
    tokens: int | None
    longest: int
    width: int


def buckets_up_to(max_sequences: int) -> tuple[int, ...]:
    """The buckets that steps of so many sequences need."""
    past = next((i for i, size in enumerate(BUCKETS) if size >= max_sequences), len(BUCKETS))
    return BUCKETS[: past + 1]


def most_drafted_tokens(max_sequences: int) -> int:
    """Tokens of the largest captured step with guesses, of two ways for each sequence at most."""
    most = _least(_DRAFTED_TOKENS, 2 * _LENGTHS[-1] * max_sequences)
    return _DRAFTED_TOKENS[-1] if most is None else most


def _least(sizes: tuple[int, ...], count: int) -> int | None:
    """The smallest of some sizes, in order, that holds so many; None where none does."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # static output [bucket, V]
    draws: CapturedDraws | None  # from them; None where torch draws


class DecodeGraphs:
    """Runs a small step by replaying a graph.

    max_sequences, max_tokens: of a step.   max_pages: of one sequence, in any cache group.
    drafts: whether every request gets guesses, so that steps with some are prepared too.
    """

    def __init__(
        self,
        model: Transformer,
        caches: tuple[LayerCache, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_sequences: int,
        max_tokens: int,
        max_pages: int,
        drafts: bool = False,
    ) -> None:
        self._model, self._caches, self._device = model, caches, device
        self._can_capture = model.can_capture
        self._buckets = buckets_up_to(max_sequences)
        self._has_one_width = model.attends_by_length(device, dtype)
        self._max_pages, self._drafts = max_pages, drafts
        self._most_drafted = most_drafted_tokens(max_sequences)
        self._pool = torch.cuda.graph_pool_handle()
        self._static: dict[_Size, StaticStep] = {}
        self._captured: dict[_Size, _Captured] = {}
        self._drafted_logits: Tensor | None = None  # of all steps with guesses, one at a time
        self._mixed: MixedGraphs | None = None
        shapes = mixed_shapes(max_sequences, max_tokens, longest=max_pages * caches[0].page_size)
        if shapes and self._can_capture and self._has_one_width:
            self._mixed = MixedGraphs(
                model,
                caches,
                device=device,
                shapes=shapes,
                max_pages=max_pages,
                pool=self._pool,
            )

    def prepare(self) -> None:
        """Capture every bucket, the largest first: the others then fit into its memory."""
        if not self._can_capture or not self._has_one_width:
            return  # a graph for each width of table is captured when it is first wanted
        with torch.inference_mode():
            if self._mixed is not None:
                self._mixed.prepare()
            for bucket in reversed(self._buckets):
                self._graph(_Size(bucket, None, 1, self._max_pages))
            for size in reversed(self._drafted_sizes() if self._drafts else []):
                self._graph(size)

    def _drafted_sizes(self) -> list[_Size]:
        """What steps of few sequences with guesses need."""
        counts = [each for each in _DRAFTED_SEQUENCES if each <= _PREPARED_SEQUENCES]
        return [
            _Size(count, tokens, longest, self._max_pages)
            for count in counts
            if count < 2 * self._buckets[-1]
            for longest in _LENGTHS
            if count == 1 or longest < _LENGTHS[-1]
            for tokens in _DRAFTED_TOKENS
            if max(count, longest // 2) < tokens <= min(count * longest, 32)
        ]

    @property
    def num_captured(self) -> int:
        """Graphs that there are: a step for which one was captured tells nothing by its time."""
        return len(self._captured) + (0 if self._mixed is None else self._mixed.num_captured)

    def fits(self, numbers: Numbers) -> bool:
        """Whether the step is one that a graph can stand for: captured are the base weights."""
        if self._size(numbers) is not None:
            return True
        return self._mixed is not None and self._mixed.fits(numbers)

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether a graph can stand for a step of sequences with so many tokens, all logits."""
        if not self._can_capture:
            return False
        is_decode = sum(counts) == len(counts)
        return (self.bucket(len(counts)) if is_decode else self._drafted_size(counts)) is not None

    def _size(self, numbers: Numbers) -> _Size | None:
        """The graph of a step, by its numbers alone; None where no graph does."""
        counts, tokens = numbers.plan.query_lengths, len(numbers.token_ids)
        wants_all = len(numbers.logit_rows) == tokens
        if not self._can_capture or not wants_all or numbers.adapters:
            return None
        if tokens > len(counts):
            return self._drafted_size(counts)
        bucket = self.bucket(tokens)
        return None if bucket is None else _Size(bucket, None, 1, self._width(numbers))

    def _drafted_size(self, counts: Sequence[int]) -> _Size | None:
        if not self._has_one_width:
            return None
        sequences = _least(_DRAFTED_SEQUENCES, len(counts))
        tokens, longest = _least(_DRAFTED_TOKENS, sum(counts)), _least(_LENGTHS, max(counts))
        if sequences is None or longest is None or tokens is None or tokens > self._most_drafted:
            return None
        return _Size(sequences, tokens, longest, self._max_pages)

    @property
    def runs_ahead(self) -> bool:
        """Whether every small decode step has its graph from the start."""
        return self._can_capture and self._has_one_width

    def draws(self, bucket: int) -> CapturedDraws | None:
        """What draws from the logits that the bucket's graph leaves; None where torch does."""
        captured = self._captured.get(_Size(bucket, None, 1, self._max_pages))
        return None if captured is None else captured.draws

    def bucket(self, count: int) -> int | None:
        """Sequences of the graph that runs so many, one token each; None where no graph does."""
        return _least(self._buckets, count)

    def run(
        self, numbers: Numbers, sink: Sink | None = None, *, token_ids: Tensor | None = None
    ) -> Tensor:
        """Logits of the rows that the step wants. Shapes: [R, V], valid until the next run.

        token_ids: where they are known to the device alone [T].
        """
        size = self._size(numbers)
        if size is None and self._mixed is not None:
            return self._mixed.run(numbers, sink)
        assert size is not None, "a step that fits has a graph"
        if sink is not None:
            return self._run_eagerly(numbers, sink, self._inputs(size))
        captured = self._graph(size)
        self._inputs(size).fill(numbers, token_ids)
        captured.graph.replay()
        return captured.logits[: len(numbers.token_ids)]

    def _width(self, numbers: Numbers) -> int:
        if self._has_one_width:
            return self._max_pages
        width = LEAST_PAGES
        while width < max(len(row) for pages in numbers.pages for row in pages):
            width *= 2
        return width

    def _run_eagerly(self, numbers: Numbers, sink: Sink, inputs: StaticStep) -> Tensor:
        """The very kernel calls of the graph, one by one, so that a sink may read between them."""
        count = len(numbers.token_ids)

        def read(name: str, value: Tensor, layer: int | None) -> None:
            sink(name, value[:count], layer)  # without the padding

        inputs.fill(numbers)
        return self._model(replace(inputs.step, sink=read))[:count]

    def _inputs(self, size: _Size) -> StaticStep:
        if size not in self._static:
            num_groups = 1 + max(cache.group for cache in self._caches)
            self._static[size] = StaticStep(
                self._caches,
                count=size.sequences,
                width=size.width,
                num_groups=num_groups,
                device=self._device,
                tokens=size.tokens,
                longest=size.longest,
            )
        return self._static[size]

    def _graph(self, size: _Size) -> _Captured:
        if size not in self._captured:
            self._captured[size] = self._capture(size, self._inputs(size))
        return self._captured[size]

    def _capture(self, size: _Size, inputs: StaticStep) -> _Captured:
        def run() -> Tensor:
            logits = self._model(inputs.step)
            return logits if size.tokens is None else self._drafted_room(logits).copy_(logits)

        graph, logits = record_graph(run, self._pool, has_ranks=self._model.group is not None)
        may_draw = self._has_one_width and size.tokens is None
        draws = CapturedDraws.of(logits) if may_draw else None
        if draws is not None:
            with stop_collecting():
                draws.capture(self._pool, is_first=not self._captured)
        return _Captured(graph, logits, draws)

    def _drafted_room(self, logits: Tensor) -> Tensor:
        """Where steps with guesses leave logits like these: few of many sizes run, none at once."""
        if self._drafted_logits is None:
            self._drafted_logits = logits.new_zeros(self._most_drafted, logits.shape[1])
        return self._drafted_logits[: len(logits)]
