"""Captured decode steps on a GPU: one CUDA graph per bucket of sequences, the same model code.

A graph records the very kernel calls of the eager step, at the bucket's sizes, over static
inputs. Rows past the real sequences are padding: they read and write the scratch page. All graphs
share one pool of memory: one runs at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.step import LayerCache, Numbers, Sink
from cutaway.engine.static_step import StaticStep
from cutaway.sampling.captured_draws import CapturedDraws

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, *range(128, 257, 16))
# Where attention reads the whole table: widths double, so that a short context does not pay for
# the longest.
LEAST_PAGES = 16


def buckets_up_to(max_sequences: int) -> tuple[int, ...]:
    """The buckets that steps of so many sequences need."""
    past = next((i for i, size in enumerate(BUCKETS) if size >= max_sequences), len(BUCKETS))
    return BUCKETS[: past + 1]


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # static output [bucket, V]
    draws: CapturedDraws | None  # from them; None where torch draws


class DecodeGraphs:
    """Runs a decode step by replaying a graph.

    max_sequences: of a step.   max_pages: of one sequence, in any cache group.
    """

    def __init__(
        self,
        model: Transformer,
        caches: tuple[LayerCache, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_sequences: int,
        max_pages: int,
    ) -> None:
        self._model, self._caches, self._device = model, caches, device
        self._can_capture = model.can_capture
        self._buckets = buckets_up_to(max_sequences)
        self._has_one_width = model.attends_by_length(device, dtype)
        self._max_pages = max_pages
        self._pool = torch.cuda.graph_pool_handle()
        self._static: dict[tuple[int, int], StaticStep] = {}
        self._captured: dict[tuple[int, int], _Captured] = {}

    def prepare(self) -> None:
        """Capture every bucket, the largest first: the others then fit into its memory."""
        if not self._can_capture or not self._has_one_width:
            return  # a graph for each width of table is captured when it is first wanted
        with torch.inference_mode():
            for bucket in reversed(self._buckets):
                self._graph(bucket, self._max_pages)

    def fits(self, numbers: Numbers) -> bool:
        """Whether the step is one that a graph can stand for: captured are the base weights."""
        count = len(numbers.plan.query_lengths)
        is_plain = len(numbers.logit_rows) == count
        is_small = numbers.plan.is_decode and count <= self._buckets[-1]
        return self._can_capture and is_plain and is_small and not numbers.adapters

    @property
    def runs_ahead(self) -> bool:
        """Whether every small decode step has its graph from the start."""
        return self._can_capture and self._has_one_width

    def draws(self, bucket: int) -> CapturedDraws | None:
        """What draws from the logits that the bucket's graph leaves; None where torch does."""
        captured = self._captured.get((bucket, self._max_pages))
        return None if captured is None else captured.draws

    def bucket(self, count: int) -> int | None:
        """Sequences of the graph that runs so many; None where no graph does."""
        return next((size for size in self._buckets if size >= count), None)

    def run(
        self, numbers: Numbers, sink: Sink | None = None, *, token_ids: Tensor | None = None
    ) -> Tensor:
        """Logits of the step's sequences. Shapes: [B, V], valid until the next run.

        token_ids: where they are known to the device alone [B].
        """
        count = len(numbers.plan.query_lengths)
        bucket = self.bucket(count)
        assert bucket is not None, "a step that fits has a bucket"
        width = self._width(numbers)
        if sink is not None:
            return self._run_eagerly(numbers, sink, self._inputs(bucket, width))
        captured = self._graph(bucket, width)
        self._inputs(bucket, width).fill(numbers, token_ids)
        captured.graph.replay()
        return captured.logits[:count]

    def _width(self, numbers: Numbers) -> int:
        if self._has_one_width:
            return self._max_pages
        width = LEAST_PAGES
        while width < max(len(row) for pages in numbers.pages for row in pages):
            width *= 2
        return width

    def _run_eagerly(self, numbers: Numbers, sink: Sink, inputs: StaticStep) -> Tensor:
        """The very kernel calls of the graph, one by one, so that a sink may read between them."""
        count = len(numbers.plan.query_lengths)

        def read(name: str, value: Tensor, layer: int | None) -> None:
            sink(name, value[:count], layer)  # without the padding

        inputs.fill(numbers)
        return self._model(replace(inputs.step, sink=read))[:count]

    def _inputs(self, bucket: int, width: int) -> StaticStep:
        if (bucket, width) not in self._static:
            num_groups = 1 + max(cache.group for cache in self._caches)
            self._static[bucket, width] = StaticStep(
                self._caches,
                count=bucket,
                width=width,
                num_groups=num_groups,
                device=self._device,
            )
        return self._static[bucket, width]

    def _graph(self, bucket: int, width: int) -> _Captured:
        if (bucket, width) not in self._captured:
            self._captured[bucket, width] = self._capture(self._inputs(bucket, width))
        return self._captured[bucket, width]

    def _capture(self, inputs: StaticStep) -> _Captured:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up outside the graph
            self._model(inputs.step)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # NCCL has threads of its own, whose calls are no part of the step.
        mode = "global" if self._model.group is None else "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode=mode):
            logits = self._model(inputs.step)
        draws = CapturedDraws.of(logits) if self._has_one_width else None
        if draws is not None:
            draws.capture(self._pool, is_first=not self._captured)
        return _Captured(graph, logits, draws)
