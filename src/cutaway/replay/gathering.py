"""Many views of one answer from few passes: each is shown as soon as a pass has what it needs.

A row of logits that one view alone wants is shown when it comes by and is gone then, so an answer
of any length needs the room of one. What was served by kernels whose sums depend on neither rows
nor company is run again in chunks, and step by step only if a checksum then differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from cutaway.core.errors import CutawayError
from cutaway.core.facts import ModelFacts
from cutaway.engine.engine import Engine
from cutaway.replay.inner_values import num_bytes
from cutaway.replay.passes import Pass, levels_of
from cutaway.replay.plan import Level
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import Proof, ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import Shown, View

MOST_TOGETHER = 512 * 2**20  # bytes of inner values that one pass keeps


@dataclass(frozen=True)
class Ask:
    """A view at a place."""

    view: View
    query: Query


# Told each view as it was shown, or why it was not, by its index among those asked for.
Tell = Callable[[int, Shown | CutawayError], None]


class Gathering:
    """Views that were asked for together.

    chunk: tokens of a step of ours; None takes the engine's own.
    Only so many results are held as one pass gives.
    """

    def __init__(
        self,
        engine: Engine,
        answer: AnswerRecord,
        subject: Subject,
        asks: Sequence[Ask],
        *,
        chunk: int | None = None,
    ) -> None:
        self._engine, self._answer, self._subject = engine, answer, subject
        self._asks, self._chunk = asks, chunk
        self._wanted: dict[int, Wanted] = {}

    def run(self, tell: Tell) -> Iterator[None]:
        """Step by step. Each index is told once."""
        self._check(tell)
        passing, groups = _grouped(self._wanted, self._engine.model.facts)
        for index, wanted in self._wanted.items():
            if wanted.is_empty:
                tell(index, self._shown(index, ReplayValues(wanted, _RECORD, {}, {}, {})))
                yield
        if passing and not groups:
            groups.append([])
        for number, group in enumerate(groups):
            yield from self._pass(group, {} if number else passing, tell)

    def _check(self, tell: Tell) -> None:
        for index, ask in enumerate(self._asks):
            try:
                ask.view.check(self._subject, ask.query)
                self._wanted[index] = ask.view.wants(self._subject, ask.query)
            except CutawayError as error:
                tell(index, error)

    def _pass(self, group: list[int], passing: dict[int, list[int]], tell: Tell) -> Iterator[None]:
        """Run once for a group, again in the steps of serving where chunks gave other bits."""
        shown: dict[int, Shown | CutawayError] = {}

        def see(token: int, row: Tensor) -> None:
            kept = row.clone()
            for index in passing[token]:
                taken = ReplayValues(self._wanted[index], _RECORD, {}, {}, {token: kept})
                shown[index] = self._shown(index, taken)

        first, *others = levels_of(self._engine, self._answer)
        taking = self._taking(group, passing, first)
        yield from taking.run(see)
        for level in others if not taking.proof.is_exact else ():
            taking = self._taking(group, passing, level)
            yield from taking.run(see)
        for index, each in shown.items():
            tell(index, each if isinstance(each, CutawayError) else _proven(each, taking.proof))
        for index, taken in zip(group, taking.takes(), strict=True):
            tell(index, self._shown(index, taken))
            yield

    def _taking(self, group: list[int], passing: dict[int, list[int]], level: Level) -> Pass:
        return Pass(
            self._engine,
            self._answer,
            [self._wanted[index] for index in group],
            level=level,
            chunk=self._chunk,
            passing=passing.keys(),
        )

    def _shown(self, index: int, taken: ReplayValues) -> Shown | CutawayError:
        ask = self._asks[index]
        try:
            payload = ask.view.payload(self._subject, ask.query, taken)
        except CutawayError as error:
            return error
        return Shown(ask.view, payload, None if taken.wanted.is_empty else taken.proof)


_RECORD = Proof("record", 0, 0)


def _proven(shown: Shown, proof: Proof) -> Shown:
    return Shown(shown.view, shown.payload, proof)


def _grouped(
    wanted: dict[int, Wanted], facts: ModelFacts
) -> tuple[dict[int, list[int]], list[list[int]]]:
    """What wants one row alone, by its token; the rest in groups that fit into memory together."""
    passing: dict[int, list[int]] = {}
    groups: list[list[int]] = []
    left = 0
    for index, each in wanted.items():
        if each.is_empty:
            continue
        if not (each.taps or each.stored) and len(each.rows) == 1:
            passing.setdefault(next(iter(each.rows)), []).append(index)
            continue
        size = num_bytes(each, facts)
        if size > left:
            groups.append([])
            left = MOST_TOGETHER
        groups[-1].append(index)
        left -= size
    return passing, groups
