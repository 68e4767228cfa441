"""Scheduled sequences to one Step: flat tokens, positions, page tables, wanted rows."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.step import GroupTables, LayerCache, ShapePlan, Sink, Step
from cutaway.engine.scheduler import Scheduled


@dataclass(frozen=True)
class Batch:
    """A step and which rows of its logits belong to whom.

    rows[i] are the logit rows of scheduled[i], in the order of its tokens: the prompt's rows
    when prompt log-probabilities are wanted, then 1 + num_drafts rows to sample from.
    """

    step: Step
    scheduled: tuple[Scheduled, ...]
    rows: tuple[range, ...]

    def sample_rows(self, index: int) -> range:
        """The rows of scheduled[index] to sample from; empty in the middle of a prompt."""
        scheduled, rows = self.scheduled[index], self.rows[index]
        return rows[-1 - scheduled.num_drafts :] if scheduled.samples else rows[:0]


def build_batch(
    scheduled: Items[Scheduled],
    caches: tuple[LayerCache, ...],
    *,
    device: torch.device,
    sink: Sink | None = None,
) -> Batch:
    """Lay the scheduled tokens side by side, sequence after sequence."""
    token_ids: list[int] = []
    positions: list[int] = []
    declared: list[int] = []
    logit_rows: list[int] = []
    rows: list[range] = []
    for item in scheduled:
        sequence, start, stop = item.sequence, item.start, item.start + item.count
        first = len(token_ids)
        known = sequence.token_ids
        token_ids += known[start:stop]
        token_ids += sequence.draft_token_ids[: item.num_drafts]
        assert len(token_ids) == first + item.count, "a scheduled token does not exist"
        positions += range(start, stop)
        declared += [sequence.max_length] * item.count
        wanted = _wanted_rows(item)
        rows.append(range(len(logit_rows), len(logit_rows) + len(wanted)))
        logit_rows += [first + row for row in wanted]
    query_lengths = tuple(item.count for item in scheduled)
    context_lengths = tuple(item.start + item.count for item in scheduled)

    def tensor(values: Items[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    step = Step(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        declared_lengths=tensor(declared),
        query_starts=tensor([0, *accumulate(query_lengths)]),
        context_lengths=tensor(context_lengths),
        logit_rows=tensor(logit_rows),
        plan=ShapePlan(query_lengths, context_lengths),
        groups=_group_tables(scheduled, device),
        caches=caches,
        sink=sink,
    )
    return Batch(step, tuple(scheduled), tuple(rows))


def _wanted_rows(item: Scheduled) -> range:
    """Tokens of the item, counted from its first, whose logits are wanted."""
    asks_prompt = item.sequence.request.params.prompt_logprobs is not None
    if asks_prompt and item.start < item.sequence.num_prompt_tokens:
        return range(item.count)
    return range(item.count - 1 - item.num_drafts, item.count) if item.samples else range(0)


def _group_tables(scheduled: Items[Scheduled], device: torch.device) -> tuple[GroupTables, ...]:
    tables = [item.sequence.tables for item in scheduled]
    groups: list[GroupTables] = []
    assert tables[0] is not None, "a scheduled sequence has tables"
    for group in range(len(tables[0].groups)):
        pages: list[list[int]] = []
        slots: list[int] = []
        for item, table in zip(scheduled, tables, strict=True):
            assert table is not None, "a scheduled sequence has tables"
            pages.append(table.groups[group].pages)
            slots += table.groups[group].slots(item.start, item.count)
        width = max(len(each) for each in pages)
        padded = [each + [SCRATCH_PAGE] * (width - len(each)) for each in pages]
        groups.append(
            GroupTables(
                torch.tensor(padded, dtype=torch.int64, device=device),
                torch.tensor(slots, dtype=torch.int64, device=device),
            )
        )
    return tuple(groups)
