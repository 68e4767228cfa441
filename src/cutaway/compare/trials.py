"""Comparisons that somebody waits for: the first of them goes on by one step at a time.

Each runs over pages of its own, so that the answers of everybody else stay what they are, and in
a thread of its own, which stops in the midst of a step that is long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import monotonic
from typing import cast

import msgspec

from cutaway.compare.allowance import Allowance
from cutaway.compare.compare import ComparisonProgress, compare_in_steps
from cutaway.compare.comparison import Comparison
from cutaway.compare.levers import Change, change_of, check_served
from cutaway.compare.sides import Source, with_own_pages
from cutaway.core.errors import CutawayError, OverloadedError, ReplayError
from cutaway.core.limits import quote
from cutaway.core.looks import ComparisonRequest, EventBatch
from cutaway.engine.engine import Engine
from cutaway.host.faults import refuse
from cutaway.host.turns import in_turns, rest
from cutaway.replay.look import PIECE_TOKENS
from cutaway.trace.ledger import find_recorded
from cutaway.views.parts.payload import as_json

MOST_WAITING, MOST_OF_OWNER = 16, 4
TELL_SECONDS = 0.1  # between two words of how far one is

Hear = Callable[[EventBatch | CutawayError], None]
_BESIDE = "other requests were answered between its steps; only its own steps were timed."


@dataclass(eq=False)
class _Trial:
    """turns: what it does, a piece at a time; each step's progress is put into reached.

    num_told: events so far.   told: the last word of how far it is, and when.
    """

    tried: ComparisonRequest
    turns: Generator[None, None, Comparison]
    reached: list[ComparisonProgress]
    hear: Hear
    first_step: int | None = None
    num_told: int = 0
    told: tuple[int, float] = (-1, 0.0)


class Trials:
    """Comparisons over one engine, in the order in which they were asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[Hashable, _Trial] = {}

    @property
    def has_work(self) -> bool:
        """Whether a comparison waits or runs."""
        return bool(self._open)

    def open(self, name: Hashable, tried: ComparisonRequest, hear: Hear) -> None:
        """Queue one. What it finds, or why nothing, is told later; at once if refused."""
        num_own = sum(each.tried.owner == tried.owner for each in self._open.values())
        if len(self._open) >= MOST_WAITING or num_own >= MOST_OF_OWNER:
            words = (
                f"too many comparisons wait: {MOST_WAITING} may at once, {MOST_OF_OWNER} of one "
                "owner. End some, or try again in a few seconds."
            )
            hear(OverloadedError(words, retry_after=5))
            return
        try:
            change = change_of(tried.change)
            check_served(change)
            source = self._source(tried)
        except CutawayError as error:
            hear(error)
            return
        reached: list[ComparisonProgress] = []
        run = partial(_run, partial(_steps, source, change, tried), reached)
        self._open[name] = _Trial(tried, in_turns(run), reached, hear)

    def leave(self, name: Hashable) -> None:
        """Nobody waits any more: what it holds is free at once."""
        trial = self._open.pop(name, None)
        if trial is not None:
            trial.turns.close()

    def step(self) -> None:
        """One step of the first, or a piece of it. A fault ends it alone."""
        name, trial = next(iter(self._open.items()))
        if trial.first_step is None:
            trial.first_step = self._engine.num_steps
        try:
            self._go_on(trial)
            return
        except StopIteration:
            pass
        except Exception as fault:
            refuse(trial.hear, fault, "this cannot be compared")
        self.leave(name)

    def _go_on(self, trial: _Trial) -> None:
        """Raises: StopIteration behind the last word."""
        try:
            next(trial.turns)
            if trial.reached:
                self._tell(trial, trial.reached.pop())
        except StopIteration as ended:
            found: Comparison = ended.value
            if self._engine.num_steps != trial.first_step:
                found = replace(found, notes=(*found.notes, _BESIDE))
            trial.hear(_event(trial, {"type": "comparison", **_plain(found)}, is_last=True))
            raise

    def _tell(self, trial: _Trial, progress: ComparisonProgress) -> None:
        """Say how far it is, a few times a second and whenever another part begins."""
        part, when = trial.told
        now = monotonic()
        if progress.num_done == part and now - when < TELL_SECONDS:
            return
        trial.told = (progress.num_done, now)
        trial.hear(_event(trial, {"type": "progress", **asdict(progress)}, is_last=False))

    def _source(self, tried: ComparisonRequest) -> Source:
        """Raises: ReplayError where there is no record, or no end of it yet."""
        answer = find_recorded(
            self._engine.ledger, tried.request_id, tried.choice, owner=tried.owner
        )
        if answer.finish_reason is None:
            raise ReplayError(
                f"answer {quote(tried.request_id)} has not ended yet. Ask when it has."
            )
        allowance = Allowance(
            max_tokens=tried.max_tokens, max_bytes=tried.max_bytes, max_flops=tried.max_flops
        )
        # Where products are the library's, other steps would be other bits than those served.
        pieces = PIECE_TOKENS if self._engine.runner.is_invariant else None
        # No lever that is served loads a model again, so the name that it was loaded by is nothing.
        return Source(self._engine, answer, self._engine.model.name, None, allowance, pieces)


def _steps(
    source: Source, change: Change, tried: ComparisonRequest
) -> Generator[ComparisonProgress, None, Comparison]:
    """Pages of its own are made when its turn comes."""
    steps = compare_in_steps(
        with_own_pages(source), change, num_runs=tried.num_runs, price=tried.price
    )
    return (yield from steps)


def _run(
    begin: Callable[[], Generator[ComparisonProgress, None, Comparison]],
    reached: list[ComparisonProgress],
) -> Comparison:
    """The same in the thread of its turns: it stops behind each step, and where steps breathe."""
    with closing(begin()) as steps:
        while True:
            try:
                reached[:] = [next(steps)]
            except StopIteration as ended:
                return ended.value
            rest()


def _event(trial: _Trial, value: dict[str, object], *, is_last: bool) -> EventBatch:
    number = trial.num_told
    trial.num_told += 1
    return EventBatch(((number, msgspec.json.encode(value)),), is_last)


def _plain(found: Comparison) -> dict[str, object]:
    return cast("dict[str, object]", as_json(found))
