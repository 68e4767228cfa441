"""A decode step whose tensors stay where they are: a captured graph reads them at every replay.

All of them are parts of one tensor on the device, filled by one copy from one pinned tensor on the
host. There the page tables stand page by page, so that the copy ends with the longest of them; and
they are changed, not rebuilt: a row is written when its pages are others than at the last step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.step import GroupTables, LayerCache, Numbers, ShapePlan, Step

_ALIGNED = 16  # entries: kernels are compiled for aligned addresses
_PADDING = (0, 0, 1, 1)  # of token ids, positions, declared lengths, context lengths; slots have 0

_NONE: list[int] = []  # pages of a row that is padding


class StaticStep:
    """Room for a step of so many sequences, one token each, on a GPU.

    What is not filled is padding: it reads and writes the scratch page.

    count: sequences.   width: pages of the longest.
    """

    def __init__(
        self,
        caches: tuple[LayerCache, ...],
        *,
        count: int,
        width: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        self.count, self.width = count, width
        room = -(-count // _ALIGNED) * _ALIGNED
        parts = len(_PADDING) + num_groups
        size = (parts + width * num_groups) * room
        self._first_table = parts * room
        self._row = num_groups * room  # one page of all sequences and groups
        pinned = torch.zeros(size, dtype=torch.int64).pin_memory()
        self._device, self._pinned = torch.zeros_like(pinned, device=device), pinned
        self._numbers = pinned[: self._first_table].view(parts, room)[:, :count].numpy()
        self._tables = pinned[self._first_table :].view(width, num_groups, room).numpy()
        self._written: list[list[list[int]]] = [[[]] * count for _ in range(num_groups)]
        self._copied = torch.cuda.Event()
        numbers = self._device[: self._first_table].view(parts, room)[:, :count]
        tables = self._device[self._first_table :].view(width, num_groups, room)
        self.step = Step(
            token_ids=numbers[0],
            positions=numbers[1],
            declared_lengths=numbers[2],
            query_starts=torch.arange(count + 1, device=device),
            context_lengths=numbers[3],
            logit_rows=torch.arange(count, device=device),
            plan=ShapePlan((1,) * count, (1,) * count, bucket=count),
            groups=tuple(
                GroupTables(tables[:, group, :count].T, numbers[len(_PADDING) + group])
                for group in range(num_groups)
            ),
            caches=caches,
        )
        self._pad(0)
        self._send(1)

    def fill(self, numbers: Numbers, token_ids: Tensor | None = None) -> None:
        """Put a step in its first rows; the rest is padding again. The device is not waited for.

        token_ids: where they are known to the device alone [B].
        """
        self._copied.synchronize()  # of the step before, which has long been read
        plan = numbers.plan
        given = (
            *(numbers.token_ids, numbers.positions, numbers.declared_lengths),
            *(plan.context_lengths, *numbers.slots),
        )
        count = len(plan.query_lengths)
        for part, values in zip(self._numbers, given, strict=True):
            part[:count] = values
        self._pad(count)
        for group, pages in enumerate(numbers.pages):
            self._change(group, pages)
        self._send(max(len(row) for pages in numbers.pages for row in pages))
        if token_ids is not None:
            self.step.token_ids[:count].copy_(token_ids)

    def _pad(self, count: int) -> None:
        for part, padding in zip(self._numbers, _PADDING, strict=False):
            part[count:] = padding
        self._numbers[len(_PADDING) :, count:] = 0

    def _change(self, group: int, pages: Sequence[Sequence[int]]) -> None:
        table, written = self._tables[:, group], self._written[group]
        for row, before in enumerate(written):
            now: Sequence[int] = pages[row] if row < len(pages) else _NONE
            if now == before:
                continue
            table[: len(now), row] = now
            table[len(now) : len(before), row] = SCRATCH_PAGE
            written[row] = list(now)

    def _send(self, width: int) -> None:
        """Copy the numbers and so many pages of every table."""
        size = self._first_table + width * self._row
        self._device[:size].copy_(self._pinned[:size], non_blocking=True)
        self._copied.record()
