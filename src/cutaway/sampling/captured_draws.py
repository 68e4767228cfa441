"""The draws of a captured step, captured too: their many small kernels cost the host more.

One graph for each kind of row: without cuts, with top_k, with top_p, with both. It reads the logits
that the step's graph leaves, and settings from a buffer that is filled by one copy.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.kernels.sample import SETTINGS, sample, takes

_GREEDY = (1.0, 0.0, -1.0, 0.0, -1.0, 0.0)  # of rows that are padding
_KINDS = tuple(product((False, True), repeat=2))


class CapturedDraws:
    """Draws from the logits of one captured step [bucket, V], which stay where they are."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        pinned = torch.zeros(len(logits), SETTINGS, dtype=torch.float64).pin_memory()
        self._pinned, self._choices = pinned, torch.zeros_like(pinned, device=logits.device)
        self._numbers = pinned.numpy()
        self._numbers[:] = _GREEDY
        self._choices.copy_(pinned)
        self._copied = torch.cuda.Event()
        self._graphs: dict[tuple[bool, bool], tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    @staticmethod
    def of(logits: Tensor) -> CapturedDraws | None:
        """None where such logits are drawn from in torch."""
        return CapturedDraws(logits) if takes(logits) else None

    def capture(self, pool: Any, *, is_first: bool) -> None:
        """Capture every kind.

        pool: of torch's graphs.   is_first: whether kernels may have to be compiled and loaded.
        """
        for has_top_k, has_top_p in _KINDS:
            if is_first:
                self._draw(has_top_k, has_top_p)
                torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                drawn = self._draw(has_top_k, has_top_p)
            self._graphs[has_top_k, has_top_p] = graph, drawn

    def _draw(self, has_top_k: bool, has_top_p: bool) -> Tensor:
        return sample(self._logits, self._choices, has_top_k=has_top_k, has_top_p=has_top_p)

    @torch.inference_mode()
    def run(self, choices: NDArray[np.float64], *, has_top_k: bool, has_top_p: bool) -> Tensor:
        """What sample gives for the first rows; valid until the next run.

        Shapes: choices [R, 6] -> [R, 7].
        """
        self._send(choices)
        graph, drawn = self._graphs[has_top_k, has_top_p]
        graph.replay()
        return drawn[: len(choices)]

    def _send(self, choices: NDArray[np.float64]) -> None:
        """Put settings of the first rows on the device; those of greedy rows are there already."""
        count = len(choices)
        is_there = np.array_equal(self._numbers[:count], choices)
        if is_there and bool((self._numbers[count:] == _GREEDY).all()):
            return  # a copy is one more thing that the draws wait for
        self._copied.synchronize()  # of the draws before, which have long been read
        self._numbers[:count] = choices
        self._numbers[count:] = _GREEDY
        self._choices.copy_(self._pinned, non_blocking=True)
        self._copied.record()
