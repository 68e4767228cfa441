"""A model with pages of its own and a runner over them: what engines and drafters stand on."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.cache.paged import PagedCache
from cutaway.cache.pool import Pool
from cutaway.core.layout import group_layers
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.memory import pages_of
from cutaway.engine.native import is_recorded
from cutaway.engine.runner import Runner, runner_of


@dataclass(frozen=True)
class PagedModel:
    """The books of the pages, and what computes steps over them.

    max_length: tokens of the longest sequence: the model's own limit, or what the pages hold.
    can_roll_back: whether tokens can be taken back; not where a layer keeps a state.
    """

    cache: PagedCache
    runner: Runner
    max_length: int
    can_roll_back: bool


def page_model(
    model: LoadedModel,
    config: EngineConfig,
    *,
    num_pages: int,
    streams: Streams | None = None,
    pinned_tokens: int = 0,
) -> PagedModel:
    """A model made ready for steps.

    config: the device's own already.   num_pages: of a group that keeps every token, the scratch
    page included.   streams: read in every step.   pinned_tokens: that are to stay in the pages.
    """
    groups = group_layers(model.transformer.cache_specs)
    counts = [pages_of(group.spec, num_pages, config) for group in groups]
    cache = PagedCache(
        groups,
        num_pages=counts,
        page_size=config.page_size,
        prefix_cache=config.prefix_cache,
    )
    pool = Pool(
        groups,
        num_pages=counts,
        page_size=config.page_size,
        dtype=model.cache_dtype,
        device=model.device,
        is_native=is_recorded(model),
        held=model.transformer.own_layers,
    )
    capacity = max(config.page_size, cache.capacity_tokens - pinned_tokens)
    max_length = min(model.facts.max_length, capacity)
    runner = runner_of(model, pool, config=config, max_length=max_length, streams=streams)
    runner.prepare()
    can_roll_back = all(group.spec.can_roll_back for group in groups)
    return PagedModel(cache, runner, max_length, can_roll_back)
