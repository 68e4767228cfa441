"""A small step whose tensors stay where they are: a captured graph reads them at every replay.

All of them are parts of one tensor on the device, filled by one copy from one pinned tensor on the
host. There the page tables stand page by page, so that the copy ends with the longest of them; and
they are changed, not rebuilt: a row is written when its pages are others than at the last step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.step import GroupTables, LayerCache, Numbers, ShapePlan, Step

_ALIGNED = 16  # entries: kernels are compiled for aligned addresses
_PADDING = (0, 0, 1)  # of token ids, positions, declared lengths; slots have 0

_NONE: list[int] = []  # pages of a row that is padding


class StaticStep:
    """Room for a step of so many sequences on a GPU: one token each, or a few with guesses.

    What is not filled is padding: it reads and writes the scratch page. Every token belongs to a
    sequence, so that nothing is computed of what nobody wrote.

    count: sequences.   width: pages of the longest.
    tokens, longest: of all sequences, and of one at most; left out, each brings one. Sequences for
        padding are added then.
    """

    def __init__(
        self,
        caches: tuple[LayerCache, ...],
        *,
        count: int,
        width: int,
        num_groups: int,
        device: torch.device,
        tokens: int | None = None,
        longest: int = 1,
    ) -> None:
        if tokens is None:
            tokens = count
        else:
            count += -(-tokens // (2 * longest))  # no more than half of it is padding
        self.count, self.tokens, self.longest, self.width = count, tokens, longest, width
        room = _aligned(count)
        num_tokens, num_counts = _aligned(tokens), _aligned(count + 1)
        parts = len(_PADDING) + num_groups
        self._first_table = parts * num_tokens + 2 * num_counts
        self._row = num_groups * room  # one page of all sequences and groups
        size = self._first_table + width * self._row
        pinned = torch.zeros(size, dtype=torch.int64).pin_memory()
        self._device, self._pinned = torch.zeros_like(pinned, device=device), pinned

        def split(whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            numbers, counts = parts * num_tokens, self._first_table
            return (
                whole[:numbers].view(parts, num_tokens)[:, :tokens],
                whole[numbers:counts].view(2, num_counts)[:, : count + 1],
                whole[counts:].view(width, num_groups, room),
            )

        self._numbers, self._counts, self._tables = (each.numpy() for each in split(pinned))
        self._written: list[list[list[int]]] = [[[]] * count for _ in range(num_groups)]
        self._padding = np.array([*_PADDING, *[0] * num_groups])[:, None]
        self._padded: tuple[int, int] | None = None  # behind so many tokens and sequences
        self._parts: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # that are copied, by width of the tables
        self._copied = torch.cuda.Event()
        numbers, counts, tables = split(self._device)
        self.step = Step(
            token_ids=numbers[0],
            positions=numbers[1],
            declared_lengths=numbers[2],
            query_starts=counts[1],
            context_lengths=counts[0, :count],
            logit_rows=torch.arange(tokens, device=device),
            plan=ShapePlan(
                (longest,) * count,
                (longest,) * count,
                bucket=count,
                most_queries=None if longest == 1 else longest,
            ),
            groups=tuple(
                GroupTables(tables[:, group, :count].T, numbers[len(_PADDING) + group])
                for group in range(num_groups)
            ),
            caches=caches,
        )
        self._pad(0, 0)
        self._send(1)

    def fill(self, numbers: Numbers, token_ids: Tensor | None = None) -> None:
        """Put a step in its first rows; the rest is padding again. The device is not waited for.

        token_ids: where they are known to the device alone [T].
        """
        self._copied.synchronize()  # of the step before, which has long been read
        plan = numbers.plan
        given = (numbers.token_ids, numbers.positions, numbers.declared_lengths, *numbers.slots)
        tokens, count = len(numbers.token_ids), len(plan.query_lengths)
        for part, values in zip(self._numbers, given, strict=True):
            part[:tokens] = values
        self._counts[0, :count] = plan.context_lengths
        if self.longest > 1:
            self._counts[1, : count + 1] = numbers.query_starts
        self._pad(tokens, count)
        for group, pages in enumerate(numbers.pages):
            change_tables(self._tables[:, group], self._written[group], pages)
        self._send(max(len(row) for pages in numbers.pages for row in pages))
        if token_ids is not None:
            self.step.token_ids[:tokens].copy_(token_ids)

    def _pad(self, tokens: int, count: int) -> None:
        if (tokens, count) == self._padded:
            return  # what was filled since lies before it
        self._padded = tokens, count
        self._numbers[:, tokens:] = self._padding
        if self.longest == 1 and count:  # where tokens start never changes then
            self._counts[0, count:-1] = 1
            return
        starts = tokens + self.longest * np.arange(self.count + 1 - count)
        self._counts[1, count:] = np.minimum(starts, self.tokens)
        # Those that bring none have a key all the same, which nobody reads.
        self._counts[0, count:-1] = np.maximum(1, np.diff(self._counts[1, count:]))

    def _send(self, width: int) -> None:
        """Copy the numbers and so many pages of every table."""
        if width not in self._parts:
            size = self._first_table + width * self._row
            self._parts[width] = self._device[:size], self._pinned[:size]
        device, pinned = self._parts[width]
        device.copy_(pinned, non_blocking=True)
        self._copied.record()


def change_tables(
    table: NDArray[np.int64], written: list[list[int]], pages: Sequence[Sequence[int]]
) -> None:
    """Write the page tables that are others than before; sequences behind the last have no page.

    written: what stands there, by sequence.   Shapes: table [pages of one, sequences].
    """
    for row, before in enumerate(written):
        now: Sequence[int] = pages[row] if row < len(pages) else _NONE
        if now == before:
            continue
        table[: len(now), row] = now
        table[len(now) : len(before), row] = SCRATCH_PAGE
        written[row] = list(now)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
