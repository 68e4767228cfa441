"""Scheduled sequences to one Step: flat tokens, positions, page tables, wanted rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import cached_property

import torch

from cutaway.core.step import LayerCache, Numbers, ShapePlan, Sink, Step, put_range
from cutaway.engine.scheduler import Scheduled


@dataclass(frozen=True)
class Batch:
    """A step and which rows of its logits belong to whom.

    rows[i] are the logit rows of scheduled[i], in the order of its tokens: the prompt's rows
    when prompt log-probabilities are wanted, then 1 + num_drafts rows to sample from, and as many
    of a second way.
    """

    scheduled: tuple[Scheduled, ...]
    rows: tuple[range, ...]
    caches: tuple[LayerCache, ...] = field(repr=False)
    device: torch.device
    sink: Sink | None = None

    @cached_property
    def numbers(self) -> Numbers:
        """The step itself, laid out when it is asked for: one that ran ahead was laid out then."""
        return _lay_out(self.scheduled)

    @property
    def num_rows(self) -> int:
        """Rows of logits that the step wants."""
        return self.rows[-1].stop

    @cached_property
    def step(self) -> Step:
        """Its tensors, made when they are asked for: native kernels read numbers alone."""
        return Step.of(self.numbers, self.caches, device=self.device, sink=self.sink)

    def sample_rows(self, index: int) -> range:
        """The rows of scheduled[index] to sample from; empty in the middle of a prompt."""
        scheduled, rows = self.scheduled[index], self.rows[index]
        count = 1 + scheduled.num_drafts
        if scheduled.is_forked:
            count *= 2
        return rows[-count:] if scheduled.samples else rows[:0]


def build_batch(
    scheduled: Items[Scheduled],
    caches: tuple[LayerCache, ...],
    *,
    device: torch.device,
    sink: Sink | None = None,
    later: bool = False,
) -> Batch:
    """A batch of the scheduled tokens side by side, sequence after sequence.

    later: whether the step is laid out when it is asked for, and not now.
    """
    rows: list[range] = []
    first = 0
    for item in scheduled:
        # One token whose row is wanted is what almost every item of decoding is.
        count = 1 if item.count == 1 and item.samples else len(_wanted_rows(item))
        if item.is_forked:
            count += item.num_other
        past = first + count
        rows.append(range(first, past))
        first = past
    batch = Batch(tuple(scheduled), tuple(rows), caches, device, sink)
    if not later:
        _ = batch.numbers
    return batch


def _lay_out(scheduled: Items[Scheduled]) -> Numbers:
    # Arrays of eight bytes a number: what is long is copied from then on, and not converted.
    token_ids, positions, declared = array("q"), array("q"), array("q")
    logit_rows: list[int] = []
    for item in scheduled:
        sequence, start, stop = item.sequence, item.start, item.start + item.count
        first = len(token_ids)
        token_ids.extend(sequence.token_ids[start:stop])
        token_ids.extend(sequence.draft_token_ids[: item.num_drafts])
        assert len(token_ids) == first + item.count, "a scheduled token does not exist"
        put_range(positions, start, stop)
        declared += array("q", (sequence.max_length,)) * item.count
        wanted = _wanted_rows(item)
        logit_rows += range(first + wanted.start, first + wanted.stop)
        if item.is_forked:
            logit_rows += range(len(token_ids), len(token_ids) + item.num_other)
            token_ids.extend((sequence.token_ids[-1], *sequence.other_token_ids))
            put_range(positions, start, stop)
            declared += array("q", (sequence.max_length,)) * item.num_other
    adapters: list[int] = []
    if any([item.sequence.adapter >= 0 for item in scheduled]):
        for item in scheduled:
            adapters += [item.sequence.adapter] * (item.count + item.num_other)
    pages, slots = _places(scheduled)
    ways: Items[Scheduled] = scheduled
    if any([item.is_forked for item in scheduled]):
        ways = [item for item in scheduled for _ in range(1 + item.is_forked)]
    plan = ShapePlan(
        tuple([item.count for item in ways]),
        tuple([item.start + item.count for item in ways]),
    )
    return Numbers(token_ids, positions, declared, logit_rows, plan, pages, slots, adapters)


def _wanted_rows(item: Scheduled) -> range:
    """Tokens of the item, counted from its first, whose logits are wanted."""
    asks_prompt = item.sequence.request.params.prompt_logprobs is not None
    if asks_prompt and item.start < item.sequence.num_prompt_tokens:
        return range(item.count)
    return range(item.count - 1 - item.num_drafts, item.count) if item.samples else range(0)


def _places(scheduled: Items[Scheduled]) -> tuple[list[list[list[int]]], list[Items[int]]]:
    """Pages and slots of every cache group; the pages are the tables' own lists."""
    tables = [item.sequence.tables for item in scheduled]
    all_pages: list[list[list[int]]] = []
    all_slots: list[Items[int]] = []
    assert tables[0] is not None, "a scheduled sequence has tables"
    for group in range(len(tables[0].groups)):
        pages: list[list[int]] = []
        slots = array("q")
        for item, table in zip(scheduled, tables, strict=True):
            assert table is not None, "a scheduled sequence has tables"
            its = table.groups[group]
            pages.append(its.pages)
            slots.extend(its.slots(item.start, item.count))
            other = item.sequence.fork if item.is_forked else None
            if other is not None:
                pages.append(other.pages_of(table, group))
                slots.extend(other.slots(group, item.count, its.page_size))
        all_pages.append(pages)
        all_slots.append(slots)
    return all_pages, all_slots
