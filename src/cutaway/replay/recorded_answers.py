"""Answers of an engine's ledger, run again: planned, replayed, verified."""

from __future__ import annotations

from typing import get_args

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote, similar
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
    Raises: ReplayError when the record of it is not whole; RequestError for another level, or a
    chunk that would not act.
    """
    _check(level, prefill_chunk)
    assert engine.ledger is not None, "an answer comes from the ledger"
    return plan_replay(
        engine.ledger,
        answer,
        page_size=engine.config.page_size,
        prefill_chunk=engine.config.prefill_chunk if prefill_chunk is None else prefill_chunk,
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

    level, prefill_chunk: as for plan_answer; a chunk belongs to invariant.
    Raises: as plan_answer does.
    """
    if prefill_chunk is not None and level == "shape-faithful":
        raise RequestError(
            "prefill_chunk belongs to level invariant; shape-faithful repeats the chunks of "
            "serving. Set level to invariant, or leave prefill_chunk out.",
            param="prefill_chunk",
        )
    params, model = answer.request.params, engine.model
    present = Present(engine.fingerprints, model.transformer, engine.cache, engine.runner.pool)
    return verify(
        replay_answer(engine, answer, level=level, prefill_chunk=prefill_chunk),
        vocab_size=model.facts.vocab_size,
        end_ids=model.end_ids(params),
        state=engine.grammar_state(params),
        present=present,
    )


def _check(level: object, prefill_chunk: object) -> None:
    """A proof takes no word that it does not know."""
    if level not in get_args(Level):
        near = similar(level, get_args(Level)) if isinstance(level, str) else []
        hint = f" Did you mean {near[0]}?" if near else ""
        raise RequestError(
            f"level is {quote(level)}; it must be {' or '.join(get_args(Level))}.{hint}",
            param="level",
        )
    if prefill_chunk is not None and (
        isinstance(prefill_chunk, bool) or not isinstance(prefill_chunk, int) or prefill_chunk < 1
    ):
        raise RequestError(
            f"prefill_chunk is {quote(prefill_chunk)}; it must be an integer of at least 1.",
            param="prefill_chunk",
        )
