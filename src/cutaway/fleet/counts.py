"""What engines counted, over all their starts: it stays when one ends or leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cutaway.cache.stores import StoreStats
from cutaway.service.service import EngineStats, GuessCount

# Of EngineStats, what only grows while an engine lives.
COUNTED: Final = (
    *("hit_tokens", "query_tokens", "steps", "preemptions", "drafted_tokens", "accepted_tokens"),
    *("restarts", "restored_pages"),
)


def add_counts(each: Iterable[EngineStats]) -> EngineStats:
    """The sums of what was counted; nothing of what is held now."""
    known = tuple(each)
    sums = {name: sum(getattr(one, name) for one in known) for name in COUNTED}
    guesses = _together(g for one in known for g in one.guesses)
    return EngineStats(guesses=guesses, **sums)  # type: ignore[arg-type]


def add_stores(each: Iterable[EngineStats]) -> tuple[StoreStats, ...]:
    """One for each kind of store: the sums, and of a folder that all share what it holds once."""
    sums: dict[str, StoreStats] = {}
    for store in (store for one in each for store in one.stores):
        before = sums.setdefault(store.kind, StoreStats(kind=store.kind))
        held = {name: getattr(store, name) for name in ("num_bytes", "most_bytes", "pages")}
        if not store.is_shared:
            held = {name: getattr(before, name) + value for name, value in held.items()}
        counted = {
            name: getattr(before, name) + getattr(store, name)
            for name in ("written", "found", "spoilt", "skipped")
        }
        sums[store.kind] = replace(before, is_shared=store.is_shared, **held, **counted)
    return tuple(sums.values())


def _together(counts: Iterable[GuessCount]) -> tuple[GuessCount, ...]:
    """One count for each drafter and place."""
    sums: dict[tuple[str, int], GuessCount] = {}
    for each in counts:
        before = sums.get((each.drafter, each.place), replace(each, tried=0, right=0))
        sums[each.drafter, each.place] = replace(
            each, tried=before.tried + each.tried, right=before.right + each.right
        )
    return tuple(sums[key] for key in sorted(sums))
