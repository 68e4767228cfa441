"""Levers inside the model: what a part adds, the form of attention, what a token sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cutaway.compare.intervene import ablation_of, change_nothing, patch_of
from cutaway.compare.levers import Change
from cutaway.compare.side import Side
from cutaway.compare.sides.beside import second_engine
from cutaway.compare.sides.pair import Pair, Source
from cutaway.compare.variant import (
    with_experts,
    with_naive_attention,
    with_window,
    without_positions,
)
from cutaway.core.limits import INT64_MAX
from cutaway.core.step import Sink


def change_modules(source: Source, change: Change, base: Side) -> Pair:
    """Both sides of a change inside the model.

    Raises: RequestError for a layer, head, position or number that the model does not have.
    """
    engine, model = source.engine, source.engine.model
    if change.lever in ("ablate", "patch"):
        # A sink counts tokens, and drafts that are refused would be counted too.
        if engine.config.draft != "off":
            base = replace(base, engine=second_engine(source, model, engine.config, draft="off"))
        num_positions = len(source.prompt) + len(source.token_ids) - 1
        sink: Callable[[], Sink]
        if change.lever == "ablate":
            sink = ablation_of(change, model.facts).sink
        else:
            sink = patch_of(change, model.facts, num_positions=num_positions).sink
        plain = replace(base, sink_of=lambda: change_nothing)
        return Pair(plain, replace(base, sink_of=sink), forced=source.token_ids)
    if change.lever == "attention":
        return _attention(source, change, base)
    if change.lever == "positions":
        change.one_of("off")
        variant = without_positions(model)
    elif change.lever == "window":
        variant = with_window(model, change.whole(least=1, most=INT64_MAX))
    else:
        variant = with_experts(model, change.whole(least=1, most=INT64_MAX))
    other = replace(base, engine=second_engine(source, variant, engine.config))
    return Pair(base, other, forced=source.token_ids)


def _attention(source: Source, change: Change, base: Side) -> Pair:
    """Both as modules, one by one: a captured step knows one form alone."""
    engine, model = source.engine, source.engine.model
    fused = replace(base, sink_of=lambda: change_nothing)
    if change.one_of("naive", "fused") == "fused":
        return Pair(fused, fused, forced=source.token_ids)
    other = second_engine(source, with_naive_attention(model), engine.config, graphs=False)
    longest = min(len(source.prompt), engine.config.prefill_chunk)
    scores = model.facts.num_heads * longest * len(source.prompt)
    note = (
        f"naive keeps up to {scores:,} scores of a layer at once ({4 * scores / 2**20:,.1f} MiB as "
        f"float32); fused reduces them as keys come."
    )
    return Pair(fused, replace(fused, engine=other), forced=source.token_ids, notes=(note,))
