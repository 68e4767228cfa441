"""Levers on how the same model runs: how tokens are drawn, what the cache keeps, in what steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutaway.compare.levers import MOST_COPIES, MOST_TOKENS, Change
from cutaway.compare.side import Side
from cutaway.compare.sides.beside import second_engine
from cutaway.compare.sides.pair import Pair, Source
from cutaway.core.limits import LIMITS
from cutaway.core.whole_numbers import whole_number
from cutaway.engine.build import device_of, precision_of
from cutaway.engine.config import EngineConfig


def change_draw(source: Source, change: Change, base: Side) -> Pair:
    """Both sides of a change of sampling. Raises: RequestError for a value that it cannot have."""
    limit = LIMITS[change.lever]
    value = _number(change.value.strip(), is_whole=limit.kind == "int")
    if value is None:
        raise change.refusal(f"it must be {limit.describe()}")
    params = replace(base.params, **{change.lever: value})
    return Pair(base, replace(base, params=params), of="draw")


def change_run(source: Source, change: Change, base: Side) -> Pair:
    """Both sides of a change of how one answer runs: cache, streaming or copies at once.

    Raises: RequestError for a value that it cannot have.
    """
    engine = source.engine
    if change.lever == "prefix_cache":
        is_on = change.one_of("on", "off") == "on"
        warm = replace(base, is_warm=True)
        if is_on == engine.config.prefix_cache:
            return Pair(warm, warm, of=None)
        other = second_engine(source, engine.model, engine.config, prefix_cache=is_on)
        return Pair(warm, replace(warm, engine=other), of=None)
    if change.lever == "kv_cache":
        change.one_of("off")
        source.check_prompt_can_hold_answer(change)
        note = "without a cache every token of prompt and answer is computed again for the next."
        return Pair(base, replace(base, has_cache=False), of=None, notes=(note,))
    if change.lever == "streaming":
        is_on = change.one_of("on", "off") == "on"
        note = "streaming changes nothing that is computed, only when it is seen."
        return Pair(base, replace(base, is_streamed=is_on), of=None, notes=(note,))
    copies = change.whole(least=1, most=MOST_COPIES)
    total = len(source.prompt) + (base.params.max_tokens or 0)
    if copies > engine.config.max_sequences or copies * total > engine.cache.capacity_tokens:
        other = second_engine(
            source, engine.model, engine.config, copies=copies, max_sequences=copies
        )
        return Pair(replace(base, engine=other), replace(base, engine=other, batch=copies), of=None)
    return Pair(base, replace(base, batch=copies), of=None)


def change_engine(source: Source, change: Change, base: Side) -> Pair:
    """Both sides of a change of the engine's settings, over the same model.

    Raises: RequestError or ConfigError for a value that a setting cannot have.
    """
    engine, model = source.engine, source.engine.model
    value: object = change.value
    if change.lever in ("prefill_chunk", "page_size"):
        value = change.whole(least=1, most=MOST_TOKENS)
    config = replace(engine.config, **{change.lever: value})
    if change.lever == "kv_dtype":
        model = replace(model, cache_dtype=_cache_dtype(source, config))
    other = replace(base, engine=second_engine(source, model, config))
    if change.lever == "kv_dtype":
        return Pair(base, other, forced=source.token_ids)
    return Pair(base, other, of=None)


def _number(text: str, *, is_whole: bool) -> float | None:
    if is_whole:
        return whole_number(text, is_signed=True)
    try:
        return float(text)
    except ValueError:
        return None


def _cache_dtype(source: Source, config: EngineConfig) -> Any:
    precision = precision_of(config.dtype, device_of(config.device), kv_dtype=config.kv_dtype)
    return source.engine.model.cache_dtype if config.kv_dtype == "auto" else precision.cache
