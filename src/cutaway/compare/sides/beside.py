"""A second engine beside the first: what its pages take is told before they are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutaway.cache.table import pages_for
from cutaway.compare.sides.pair import Source
from cutaway.core.work import cache_bytes_per_token
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.draft_models import drafting_beside
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel


def second_engine(
    source: Source, model: LoadedModel, config: EngineConfig, *, copies: int = 1, **settings: Any
) -> Engine:
    """An engine with a pool of its own, no larger than the answer needs."""
    config = replace(config, **settings)
    given = source.params.max_tokens or 0
    # Room for a prompt that another tokenizer cuts in more pieces.
    total = 2 * len(source.prompt) + given + config.page_size
    num_pages = 1 + copies * pages_for(total, config.page_size)
    dtype = str(model.cache_dtype).removeprefix("torch.")
    num_bytes = num_pages * config.page_size * cache_bytes_per_token(model.facts, dtype)
    words = f"a second pool beside: {num_bytes / 2**20:,.1f} MiB of keys and values"
    source.allowance.take(num_bytes, words)
    drafting = drafting_beside(source.engine.drafting, model, config, num_pages=num_pages)
    engine = Engine(
        model, config, num_pages=num_pages, drafting=drafting, piece_tokens=source.piece_tokens
    )
    engine.runner.gives_turns = True
    return engine


def with_own_pages(source: Source) -> Source:
    """The same over pages of its own, where others go on using the engine."""
    engine = source.engine
    return replace(source, engine=second_engine(source, engine.model, engine.config))
