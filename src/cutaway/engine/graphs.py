"""Captured decode steps on a GPU: one CUDA graph per bucket of sequences, the same model code.

A graph records the very kernel calls of the eager step, at the bucket's sizes, over static
inputs. Rows past the real sequences are padding: they read and write the scratch page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.step import GroupTables, LayerCache, ShapePlan, Step

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Page-table widths double, so that a short context does not pay for the longest.
LEAST_PAGES = 16


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    step: Step  # static inputs
    logits: Tensor  # static output [bucket, V]


class DecodeGraphs:
    """Runs a decode step by replaying a graph, capturing it at first use."""

    def __init__(self, model: Transformer, caches: tuple[LayerCache, ...]) -> None:
        self._model = model
        self._caches = caches
        self._can_capture = model.can_capture
        self._captured: dict[tuple[int, int], _Captured] = {}

    def fits(self, step: Step) -> bool:
        """Whether the step is one that a graph can stand for."""
        count = len(step.plan.query_lengths)
        is_plain = len(step.logit_rows) == count
        is_small = step.plan.is_decode and count <= BUCKETS[-1]
        return self._can_capture and is_plain and is_small

    def run(self, step: Step) -> Tensor:
        """Logits of the step's sequences. Shapes: [B, V], valid until the next run."""
        count = len(step.plan.query_lengths)
        bucket = next(size for size in BUCKETS if size >= count)
        width = LEAST_PAGES
        while width < max(tables.page_table.shape[1] for tables in step.groups):
            width *= 2
        if step.sink is not None:
            return self._run_eagerly(step, bucket, width)
        captured = self._captured.get((bucket, width))
        if captured is None:
            captured = self._capture(step, bucket, width)
            self._captured[(bucket, width)] = captured
        _copy(step, captured.step, count)
        captured.graph.replay()
        return captured.logits[:count]

    def _run_eagerly(self, step: Step, bucket: int, width: int) -> Tensor:
        """The very kernel calls of the graph, one by one, so that a sink may read between them."""
        count, sink = len(step.plan.query_lengths), step.sink
        assert sink is not None, "without a sink the graph is replayed"

        def read(name: str, value: Tensor, layer: int | None) -> None:
            sink(name, value[:count], layer)  # without the padding

        static = replace(_static_step(step, self._caches, bucket, width), sink=read)
        _copy(step, static, count)
        return self._model(static)[:count]

    def _capture(self, step: Step, bucket: int, width: int) -> _Captured:
        static = _static_step(step, self._caches, bucket, width)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up outside the graph
            self._model(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._model(static)
        return _Captured(graph, static, logits)


def _static_step(step: Step, caches: tuple[LayerCache, ...], bucket: int, width: int) -> Step:
    """A step of bucket sequences, all padding: one token each, in the scratch page."""
    device = step.token_ids.device
    zeros = torch.zeros(bucket, dtype=torch.int64, device=device)
    groups = tuple(GroupTables(zeros.new_zeros(bucket, width), zeros.clone()) for _ in step.groups)
    return Step(
        token_ids=zeros.clone(),
        positions=zeros.clone(),
        declared_lengths=zeros + 1,
        query_starts=torch.arange(bucket + 1, device=device),
        context_lengths=zeros + 1,
        logit_rows=torch.arange(bucket, device=device),
        plan=ShapePlan((1,) * bucket, (1,) * bucket, bucket=bucket),
        groups=groups,
        caches=caches,
    )


def _copy(source: Step, target: Step, count: int) -> None:
    """Put the real sequences first; what is left of an earlier step becomes padding again."""
    for name, padding in (
        ("token_ids", 0),
        ("positions", 0),
        ("declared_lengths", 1),
        ("context_lengths", 1),
    ):
        tensor: Tensor = getattr(target, name)
        tensor[:count].copy_(getattr(source, name))
        tensor[count:].fill_(padding)
    for ours, theirs in zip(target.groups, source.groups, strict=True):
        ours.page_table.zero_()
        ours.page_table[:count, : theirs.page_table.shape[1]].copy_(theirs.page_table)
        ours.slots.zero_()
        ours.slots[:count].copy_(theirs.slots)
