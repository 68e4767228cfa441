"""The levers of a running engine, each with the range that it has there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cutaway.compare.levers import (
    DRAWS,
    ENGINES,
    MODELS,
    MODULES,
    MOST_SERVED_COPIES,
    MOST_TOKENS,
    NOT_SERVED,
    RUNS,
    WORDS,
)
from cutaway.compare.variant import (
    num_experts,
    with_experts,
    with_naive_attention,
    with_window,
    without_positions,
)
from cutaway.core.errors import RequestError
from cutaway.core.limits import LIMITS
from cutaway.core.looks import LeverCard
from cutaway.engine.config import DTYPES, KV_DTYPES
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "draw": DRAWS,
    "words": WORDS,
    "modules": MODULES,
    "run": RUNS,
    "engine": ENGINES,
    "model": MODELS,
}
# Made once to learn whether they can be; over the very same matrices.
_VARIANTS: Mapping[str, Callable[[LoadedModel], LoadedModel]] = {
    "positions": without_positions,
    "attention": with_naive_attention,
    "window": lambda model: with_window(model, 1),
    "experts_per_token": lambda model: with_experts(model, 1),
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "positions": ("off",),
    "attention": ("naive", "fused"),
    "prefix_cache": ("on", "off"),
    "kv_cache": ("off",),
    "streaming": ("on", "off"),
    "kv_dtype": KV_DTYPES,
    "dtype": DTYPES,
}


def levers_of(engine: Engine) -> tuple[LeverCard, ...]:
    """All that there are, in the order of the help."""
    return tuple(
        _card(engine, name, meaning, group)
        for group, levers in _GROUPS.items()
        for name, meaning in levers.items()
    )


def _card(engine: Engine, name: str, meaning: str, group: str) -> LeverCard:
    refused = NOT_SERVED.get(name) or _missing(engine.model, name)
    card = LeverCard(name=name, meaning=meaning, group=group, kind="text", refused=refused)
    if group in ("engine", "model"):
        card = replace(card, now=engine.model.name if name == "model" else _now(engine, name))
    if name in DRAWS:
        limit = LIMITS[name]
        kind = "whole" if limit.kind == "int" else "number"
        ends = float(limit.least), float(limit.most)  # as they arrive from another process
        return replace(card, kind=kind, least=ends[0], most=ends[1], is_open=limit.least_open)
    if name == "draft" and engine.drafting is not None:
        return replace(card, kind="choice", choices=engine.drafting.names)
    if name in _CHOICES:
        return replace(card, kind="choice", choices=_CHOICES[name])
    ends = _ends(engine, name)
    if ends is None:
        return card
    kind, least, most = ends
    num_heads = engine.model.facts.num_heads if kind == "layer" else None
    return replace(card, kind=kind, least=least, most=most, num_heads=num_heads)


def _ends(engine: Engine, name: str) -> tuple[str, int, int] | None:
    facts = engine.model.facts
    ends = {
        "token": ("token", 0, facts.vocab_size - 1),
        "context": ("whole", 1, engine.max_length),
        "ablate": ("layer", 0, facts.num_layers - 1),
        "patch": ("patch", 0, facts.num_layers - 1),
        "window": ("whole", 1, engine.max_length),
        "experts_per_token": ("whole", 1, num_experts(engine.model) or 1),
        "batch": ("whole", 1, MOST_SERVED_COPIES),
        "prefill_chunk": ("whole", 1, MOST_TOKENS),
        "page_size": ("whole", 1, MOST_TOKENS),
    }
    return ends.get(name)


def _now(engine: Engine, name: str) -> str:
    return str(getattr(engine.config, name))


def _missing(model: LoadedModel, name: str) -> str | None:
    """Why the model has nothing that could be changed so."""
    variant = _VARIANTS.get(name)
    if variant is None:
        return None
    try:
        variant(model)
    except RequestError as error:
        return str(error)
    return None
