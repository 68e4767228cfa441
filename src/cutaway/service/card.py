"""What a running engine says of itself, as plain data."""

from __future__ import annotations

from cutaway.compare.lever_cards import levers_of
from cutaway.core.looks import ViewCard
from cutaway.engine.engine import Engine
from cutaway.service.service import EngineStats, ModelCard
from cutaway.views import VIEWS


def card_of(engine: Engine) -> ModelCard:
    """What an engine's model is."""
    model = engine.model
    return ModelCard(
        name=model.name,
        licence=model.licence,
        architecture=model.facts.architecture,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        vocab_size=model.facts.vocab_size,
        max_length=engine.max_length,
        num_parameters=model.facts.num_parameters,
        views=tuple(
            ViewCard(name=each.name, stage=each.stage, question=each.question, takes=each.takes)
            for each in VIEWS
        ),
        levers=levers_of(engine),
        is_recorded=engine.ledger is not None,
    )


def stats_of(engine: Engine) -> EngineStats:
    """What an engine holds now."""
    cache, waiting = engine.cache_stats, engine.scheduler.waiting
    return EngineStats(
        running=engine.scheduler.num_running,
        waiting=len(waiting),
        waiting_tokens=sum(sequence.num_tokens for sequence in waiting),
        pages_used=cache.used,
        pages_cached=cache.cached,
        pages_total=cache.used + cache.cached + cache.free,
        hit_tokens=cache.hit_tokens,
        query_tokens=cache.query_tokens,
        steps=engine.num_steps,
        preemptions=engine.scheduler.num_preemptions,
        drafted_tokens=engine.num_drafted,
        accepted_tokens=engine.num_accepted,
    )


def cache_tokens_of(engine: Engine) -> int:
    """Tokens that an engine's cache holds over all sequences."""
    return stats_of(engine).pages_total * engine.config.page_size
