"""Answers of an engine's ledger, run again: planned, replayed, verified."""

from __future__ import annotations

from cutaway.engine.engine import Engine
from cutaway.replay.plan import Level, ReplayPlan, plan_replay
from cutaway.replay.replay import Replay, SinkOf
from cutaway.replay.spare_runners import SpareRunners
from cutaway.replay.verify import Present, Verdict, verify
from cutaway.trace.records import AnswerRecord


def plan_answer(
    engine: Engine,
    answer: AnswerRecord,
    *,
    level: Level = "shape-faithful",
    prefill_chunk: int | None = None,
) -> ReplayPlan:
    """What it takes to run an answer again; it holds no pages.

    prefill_chunk: of steps that are not those of serving; None takes the engine's own.
    Raises: ReplayError when the record of it is not whole.
    """
    assert engine.ledger is not None, "an answer comes from the ledger"
    return plan_replay(
        engine.ledger,
        answer,
        page_size=engine.config.page_size,
        prefill_chunk=prefill_chunk or engine.config.prefill_chunk,
        level=level,
    )


def replay_answer(
    engine: Engine,
    answer: AnswerRecord,
    *,
    level: Level = "shape-faithful",
    prefill_chunk: int | None = None,
    sink_of: SinkOf | None = None,
    intervenes: bool = False,
    spares: SpareRunners | None = None,
) -> Replay:
    """An answer, ready to run again in pages of its own.

    level, prefill_chunk: as for plan_answer.   spares: as in replay/replay.py.
    Its plan tells the cost before it is spent; running it is up to the caller.
    Raises: ReplayError when the record of it is not whole.
    """
    plan = plan_answer(engine, answer, level=level, prefill_chunk=prefill_chunk)
    return Replay(
        plan,
        model=engine.model,
        config=engine.config,
        sink_of=sink_of,
        intervenes=intervenes,
        spares=spares,
    )


def verify_answer(
    engine: Engine,
    answer: AnswerRecord,
    *,
    level: Level = "shape-faithful",
    prefill_chunk: int | None = None,
) -> Verdict:
    """Run an answer again and say whether it is the one that was served.

    level, prefill_chunk: as for plan_answer.
    Raises: ReplayError when the record of it is not whole.
    """
    params, model = answer.request.params, engine.model
    present = Present(engine.fingerprints, model.transformer, engine.cache, engine.runner.pool)
    return verify(
        replay_answer(engine, answer, level=level, prefill_chunk=prefill_chunk),
        vocab_size=model.facts.vocab_size,
        end_ids=model.end_ids(params),
        state=engine.grammar_state(params),
        present=present,
    )
