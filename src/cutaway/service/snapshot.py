"""What an engine holds at one moment, without content: answers by number, pages by state.

docs/events.md lists the fields. Whose answers are not the asker's are numbers without ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cutaway.blocks.weighed import stored_bytes
from cutaway.core.layout import SCRATCH_PAGE
from cutaway.engine.engine import Engine
from cutaway.engine.ranks.leader import Ranks
from cutaway.engine.sequence import Sequence
from cutaway.service.answer_events import groups_of
from cutaway.service.card import stats_of
from cutaway.trace.events import SCHEMA, Event
from cutaway.trace.records import StepRecord


def snapshot_of(engine: Engine, owner: str) -> bytes:
    """As JSON, for somebody who asks."""
    stats, ledger, scheduler = stats_of(engine), engine.ledger, engine.scheduler
    last = None if ledger is None else ledger.last_step
    return msgspec.json.encode(
        {
            "schema": SCHEMA,
            "steps": engine.num_steps,
            "running": [_sequence(engine, each, owner) for each in scheduler.running],
            "waiting": [_sequence(engine, each, owner) for each in scheduler.waiting],
            "batch": None if last is None else _batch(last),
            "groups": [
                {**group, **_pages(engine, index)} for index, group in enumerate(groups_of(engine))
            ],
            "counts": {
                "hit_tokens": stats.hit_tokens,
                "query_tokens": stats.query_tokens,
                "restored_pages": stats.restored_pages,
                "preemptions": stats.preemptions,
                "drafted_tokens": stats.drafted_tokens,
                "accepted_tokens": stats.accepted_tokens,
                "recorded_answers": 0 if ledger is None else ledger.num_answers,
                "recorded_bytes": 0 if ledger is None else ledger.num_bytes,
            },
            "stores": stats.stores,
            "pins": engine.pins.cards,
            **({} if engine.model.ranks is None else {"ranks": _ranks(engine, engine.model.ranks)}),
        }
    )


def _ranks(engine: Engine, ranks: Ranks) -> list[Event]:
    """What each rank of a divided model holds, this one first."""
    own = (stored_bytes(engine.model.transformer), engine.runner.pool.num_bytes)
    others = zip(ranks.weight_bytes, ranks.page_bytes, strict=True)
    return [
        {"rank": rank, "weight_bytes": weights, "page_bytes": pages, "is_gone": ranks.is_lost}
        for rank, (weights, pages) in enumerate([own, *others])
    ]


def _sequence(engine: Engine, sequence: Sequence, owner: str) -> Event:
    request = sequence.request
    is_own = request.owner == owner
    tables = () if sequence.tables is None else sequence.tables.groups
    recorder = engine.recorder
    return {
        "answer": None if recorder is None else recorder.number_of(sequence),
        "trace_id": request.request_id if is_own else None,
        "choice": sequence.choice if is_own else None,
        "lora": (request.lora or None) if is_own else None,
        "num_tokens": sequence.num_tokens,
        "num_computed": sequence.num_computed_tokens,
        "num_prompt_tokens": sequence.num_prompt_tokens,
        "num_cached": sequence.num_cached_tokens if is_own else None,
        "preemptions": sequence.num_preemptions,
        "pages": [list(_runs(table.pages)) for table in tables],
    }


def _batch(step: StepRecord) -> Event:
    return {
        "number": step.number,
        "seconds": round(step.ended - step.began, 7),
        "kernel": step.kernel,
        "parts": [
            {
                "answer": part.answer,
                "start": part.start,
                "count": part.count,
                "rows": part.num_rows,
                "drafts": len(part.draft_token_ids),
            }
            for part in step.parts
        ],
    }


def _pages(engine: Engine, group: int) -> Event:
    """Every page of a group by its state, and how many are in each."""
    pages = engine.cache.allocators[group]
    return {
        "num_pages": pages.num_pages,
        "free": pages.num_free,
        "cached": pages.num_cached,
        "used": pages.num_used,
        "evictions": pages.num_evictions,
        "map": pages.states(),
    }


def _runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring pages as [first, count]; those that left a window are nowhere."""
    first = count = 0
    for page in pages:
        if page == SCRATCH_PAGE:
            continue
        if count and page == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = page, 1
    if count:
        yield first, count
