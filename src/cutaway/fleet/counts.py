"""What engines counted, over all their starts: it stays when one ends or leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cutaway.service.service import EngineStats, GuessCount

# Of EngineStats, what only grows while an engine lives.
COUNTED: Final = (
    *("hit_tokens", "query_tokens", "steps", "preemptions", "drafted_tokens", "accepted_tokens"),
    "restarts",
)


def add_counts(each: Iterable[EngineStats]) -> EngineStats:
    """The sums of what was counted; nothing of what is held now."""
    known = tuple(each)
    sums = {name: sum(getattr(one, name) for one in known) for name in COUNTED}
    guesses = _together(g for one in known for g in one.guesses)
    return EngineStats(guesses=guesses, **sums)  # type: ignore[arg-type]


def _together(counts: Iterable[GuessCount]) -> tuple[GuessCount, ...]:
    """One count for each drafter and place."""
    sums: dict[tuple[str, int], GuessCount] = {}
    for each in counts:
        before = sums.get((each.drafter, each.place), replace(each, tried=0, right=0))
        sums[each.drafter, each.place] = replace(
            each, tried=before.tried + each.tried, right=before.right + each.right
        )
    return tuple(sums[key] for key in sorted(sums))
