"""What a running engine says of itself, as plain data."""

from __future__ import annotations

from cutaway.cache.prefix import root_key
from cutaway.compare.lever_cards import levers_of
from cutaway.core.looks import ViewCard
from cutaway.engine.engine import Engine
from cutaway.engine.numeric_class import form_of, numeric_class_of, weights_of
from cutaway.service.service import AdapterCard, EngineStats, EngineTerms, GuessCount, ModelCard
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
        adapters=adapters_of(engine),
        settings=engine.config.numeric_settings(),
    )


def terms_of(engine: Engine) -> EngineTerms:
    """What an engine can take, and which others give its numbers."""
    config = engine.config
    model, runner = engine.model, engine.runner
    weights, form = weights_of(model, engine.fingerprints), form_of(model, config)
    return EngineTerms(
        max_sequences=config.max_sequences,
        cache_tokens=cache_tokens_of(engine),
        page_size=config.page_size,
        prompt_tokens=engine.scheduler.config.max_prompt_tokens or config.max_tokens_per_step,
        page_keys=engine.page_keys,
        numeric_class=numeric_class_of(model, runner, weights, form).hex()[:16],
        is_invariant=runner.is_invariant,
        vocabulary=model.tokenizer.fingerprint,
        weights=root_key(*weights).hex()[:16],
        form=root_key(*form).hex()[:16],
    )


def adapters_of(engine: Engine) -> tuple[AdapterCard, ...]:
    """The adapters that requests can name now."""
    return tuple(
        AdapterCard(
            name=each.name,
            path=each.path,
            rank=each.rank,
            num_matrices=each.num_matrices,
            num_bytes=each.num_bytes,
        )
        for each in engine.model.adapters.loaded
    )


def adapt(engine: Engine, name: str, path: str | None) -> tuple[AdapterCard, ...]:
    """Load or unload, and say what is loaded then. Raises: ConfigError, ModelFormatError."""
    if path is None:
        engine.unload_adapter(name)
    else:
        engine.load_adapter(name, path)
    return adapters_of(engine)


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
        prompt_rate=engine.pace.prompt_rate,
        step_seconds=engine.pace.step_seconds,
        guesses=_guesses(engine),
        page_size=engine.config.page_size,
        max_sequences=engine.config.max_sequences,
        pinned_pages=cache.pinned,
        restored_pages=cache.restored,
        stores=tuple(store.stats for store in engine.cache.moves.stores),
    )


def _guesses(engine: Engine) -> tuple[GuessCount, ...]:
    drafting = engine.drafting
    if drafting is None:
        return ()
    return tuple(
        GuessCount(drafter, place, tried, drafting.right[drafter, place])
        for (drafter, place), tried in sorted(drafting.tried.items())
    )


def cache_tokens_of(engine: Engine) -> int:
    """Tokens that an engine's cache holds over all sequences."""
    return stats_of(engine).pages_total * engine.config.page_size
