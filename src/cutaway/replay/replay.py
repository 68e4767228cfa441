"""A recorded answer run again, step by step, in a pool of its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from cutaway.cache.pool import Pool
from cutaway.cache.table import pages_for, unseen_pages
from cutaway.core.errors import ReplayError
from cutaway.core.layout import SCRATCH_PAGE, CacheGroup, group_layers
from cutaway.core.limits import quote
from cutaway.core.step import Numbers, ShapePlan, Sink
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.native import is_recorded
from cutaway.engine.runner import runner_of
from cutaway.replay.plan import ReplayPlan, Run
from cutaway.replay.spare_runners import (
    LEAST_PAGES,
    LEAST_TOKENS,
    SpareRunner,
    SpareRunners,
    round_up,
)
from cutaway.trace.records import Origin

# Who sees the taps of a run: a reader, or nobody.
SinkOf = Callable[[Run], Sink | None]


class Replay:
    """Runs a plan. Its pool lives as long as it does.

    sink_of:   who sees the taps of each run.
    intervenes: whether what sinks return takes a value's place. The model then runs as modules,
    which is another arithmetic where native kernels served.
    spares:    recordings that earlier replays left; this one leaves its own when it ends.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        *,
        model: LoadedModel,
        config: EngineConfig,
        sink_of: SinkOf | None = None,
        intervenes: bool = False,
        spares: SpareRunners | None = None,
    ) -> None:
        self.plan = plan
        self._device, self._page_size, self._sink_of = model.device, config.page_size, sink_of
        self._adapter = _adapter_of(plan, model)
        self._groups = group_layers(model.transformer.cache_specs)
        keeps, is_spared = sink_of is not None, is_recorded(model) and not intervenes
        used: SpareRunner | None = None
        if spares is not None and is_spared:
            used = spares.take(num_pages=plan.num_pages, max_tokens=plan.max_tokens, keeps=keeps)
        if used is None:
            is_rounded = spares is not None and is_spared
            num_pages = round_up(plan.num_pages, LEAST_PAGES) if is_rounded else plan.num_pages
            max_tokens = round_up(plan.max_tokens, LEAST_TOKENS) if is_rounded else plan.max_tokens
            pool = Pool(
                self._groups,
                num_pages=[num_pages] * len(self._groups),
                page_size=config.page_size,
                dtype=model.cache_dtype,
                device=model.device,
                is_native=is_recorded(model),
                held=model.transformer.own_layers,
            )
            runner = runner_of(
                model,
                pool,
                config=config,
                max_length=model.facts.max_length,
                max_tokens=max_tokens,
                keeps=keeps,
                is_plain=intervenes,
            )
            runner.gives_turns = True
            if spares is not None:
                spares.recording_seconds += runner.recording_seconds
            used = SpareRunner(pool, runner, num_pages, max_tokens, keeps)
        self.pool, self._runner = used.pool, used.runner
        if spares is not None and is_spared:
            weakref.finalize(self, spares.give_back, used).atexit = False

    def steps(self, stop: int | None = None) -> Iterator[tuple[Run, Tensor]]:
        """Each step of the plan, or the first so many, after it was run.

        Shapes: with each, the logits of its part's rows [R, V], valid until the next one.
        """
        for run in self.plan.runs[:stop]:
            sink = None if self._sink_of is None else self._sink_of(run)
            logits = self._runner.forward(self._numbers_of(run), sink)
            first = sum(part.num_rows for part in run.step.parts[: run.at])
            yield run, logits[first : first + run.part.num_rows]

    def read_stored(self, origin: Origin, layer: int, count: int) -> dict[str, Tensor]:
        """What a layer keeps of an admission's first tokens, as float32.

        Shapes: each field [count, ...]. Raises: ReplayError where a layer keeps a state instead.
        """
        cache, size = self.pool.layers[layer], self._page_size
        if self._groups[cache.group].spec.is_state:
            raise ReplayError(
                f"layer {layer} keeps a state, not keys of tokens; ask for another layer."
            )
        pages = self._tensor(list(self.plan.tables[origin][: pages_for(count, size)]))
        places = torch.arange(count, device=self._device)
        slots = pages[places // size] * size + places % size
        fields = self._groups[cache.group].spec.fields
        return {field.name: cache.read(field.name, slots) for field in fields}

    def _numbers_of(self, run: Run) -> Numbers:
        parts = run.step.parts
        starts = [0, *accumulate(part.count for part in parts)]
        token_ids = [0] * starts[-1]
        token_ids[starts[run.at] : starts[run.at + 1]] = _token_ids(run)
        rows = [
            row
            for part, (_, end) in zip(parts, pairwise(starts), strict=True)
            for row in range(end - part.num_rows, end)
        ]
        places = [self._places(run, group) for group in self._groups]
        return Numbers(
            token_ids=token_ids,
            positions=[p for part in parts for p in range(part.start, part.end)],
            declared_lengths=[run.answer.max_length] * starts[-1],
            logit_rows=rows,
            plan=ShapePlan(tuple(part.count for part in parts), tuple(part.end for part in parts)),
            pages=[pages for pages, _ in places],
            slots=[slots for _, slots in places],
            adapters=[self._adapter] * starts[-1] if self._adapter >= 0 else [],
        )

    def _places(self, run: Run, group: CacheGroup) -> tuple[list[list[int]], list[int]]:
        """Pages and slots: ours for our part; the dummies read and write the scratch page."""
        size, parts = self._page_size, run.step.parts
        table = [[SCRATCH_PAGE] * pages_for(part.end, size) for part in parts]
        slots: list[int] = []
        for index, part in enumerate(parts):
            if index == run.at:
                pages = list(self.plan.tables[run.writer][: pages_for(part.end, size)])
                slots += [pages[p // size] * size + p % size for p in range(part.start, part.end)]
                for unseen in unseen_pages(group.spec.extent, part.start, size):
                    pages[unseen] = SCRATCH_PAGE
                table[index] = pages
            else:
                slots += [p % size for p in range(part.start, part.end)]
        return table, slots

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _adapter_of(plan: ReplayPlan, model: LoadedModel) -> int:
    """The place of the answer's adapter, -1 without one. Raises: ReplayError when it is gone.

    Whoever left pages to an answer had the same: it is part of their keys.
    """
    load_id, name = plan.answer.load_id, plan.answer.request.lora
    if not load_id:
        return -1
    adapter = model.adapters.holds(load_id)
    if adapter is None:
        raise ReplayError(
            f"this answer has the adapter {quote(name)}, which was unloaded since; it cannot be "
            "run again. Ask anew."
        )
    return adapter.place


def _token_ids(run: Run) -> list[int]:
    """What went through the model: known tokens, and drafts behind them."""
    part = run.part
    known = run.answer.token_ids[part.start : part.end - len(part.draft_token_ids)]
    token_ids = [*known, *part.draft_token_ids]
    assert len(token_ids) == part.count, "the record has every token that a step computed"
    return token_ids
