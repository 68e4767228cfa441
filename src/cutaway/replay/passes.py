"""One pass of a recorded answer through the model, for all that several looks want of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from torch import Tensor

from cutaway.engine.engine import Engine
from cutaway.replay.inner_values import Sinks, TapReader, num_runs
from cutaway.replay.plan import Level
from cutaway.replay.recorded_answers import replay_answer
from cutaway.replay.spare_runners import SpareRunners
from cutaway.sampling.checksums import checksums
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.replay_values import Proof, ReplayValues, Wanted

# Told each row that was asked for as it comes; it is valid until the call returns.
SeeRow = Callable[[int, Tensor], None]


def levels_of(engine: Engine, answer: AnswerRecord) -> tuple[Level, ...]:
    """How an answer may be run again, in the order in which to try.

    First in steps of any size, where its kernels sum in an order that depends on neither rows nor
    company; in those of serving if a checksum differs.
    """
    ledger = engine.ledger
    assert ledger is not None, "an answer comes from the ledger"
    steps = (ledger.step(number) for number in answer.steps)
    is_native = all(step is not None and step.kernel == "native" for step in steps)
    is_alike = is_native or (engine.config.invariant and engine.runner.is_invariant)
    return ("invariant", "shape-faithful") if is_alike else ("shape-faithful",)


def _nobody(index: int, row: Tensor) -> None:
    del index, row


class Pass:
    """A replay that ends where nothing more is wanted.

    level, chunk: as for Engine.replay.
    spares:  recordings of earlier passes.
    passing: indices of the answer's tokens whose rows are told as they come, and not kept.
    """

    def __init__(
        self,
        engine: Engine,
        answer: AnswerRecord,
        group: Sequence[Wanted],
        *,
        level: Level = "shape-faithful",
        chunk: int | None = None,
        passing: Collection[int] = (),
        spares: SpareRunners | None = None,
    ) -> None:
        size = engine.config.page_size
        self._answer, self._passing = answer, frozenset(passing)
        self._readers = [TapReader(wanted) for wanted in group]
        sinks = Sinks(self._readers, size)
        self._replay = replay_answer(
            engine,
            answer,
            level=level,
            prefill_chunk=chunk,
            sink_of=sinks.sink_of,
            spares=spares,
        )
        sinks.plan = plan = self._replay.plan
        told = [*group, Wanted(rows=self._passing)] if passing else group
        self._stop = max(num_runs(plan, wanted, size) for wanted in told)
        self._rows: dict[int, Tensor] = {}
        self._compared: list[bool] = []

    def run(self, see: SeeRow = _nobody) -> Iterator[None]:
        """Step by step, each row compared with the one that was served."""
        kept = frozenset[int]().union(*(reader.wanted.rows for reader in self._readers))
        for run, logits in self._replay.steps(self._stop):
            told = checksums(logits)
            for drawn in run.drawn:
                self._compared.append(told[drawn.row] == self._answer.tokens[drawn.index].checksum)
                if drawn.index in kept:
                    self._rows[drawn.index] = logits[drawn.row].float().clone()
                if drawn.index in self._passing:
                    see(drawn.index, logits[drawn.row].float())
            yield

    @property
    def proof(self) -> Proof:
        """Of the rows so far."""
        plan, compared = self._replay.plan, self._compared
        cause = plan.cause or "what serving computed was computed otherwise"
        return Proof(plan.level, len(compared), sum(compared), None if all(compared) else cause)

    def takes(self) -> Iterator[ReplayValues]:
        """What each of the group wanted, after the last step."""
        plan, ends, proof = self._replay.plan, dict[int, int](), self.proof
        for reader in self._readers:
            wanted = reader.wanted
            ends |= {layer: max(wanted.end, ends.get(layer, 0)) for layer in wanted.stored}
        stored = {
            layer: self._replay.read_stored(plan.final, layer, end) for layer, end in ends.items()
        }
        for reader in self._readers:
            yield reader.collect(proof, stored, self._rows)
