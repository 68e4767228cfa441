"""What each stage of the sampler did to one row, by running the very stages one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.sampling.draw import draw
from cutaway.sampling.integer_weights import exact_sum
from cutaway.sampling.largest import first_largest
from cutaway.sampling.sampler import stages_of, uniforms
from cutaway.sampling.threads import one_thread


@dataclass(frozen=True)
class StageEffect:
    """The row after one stage.

    num_kept:  tokens that can still be drawn (weight above 0).
    total:     sum of their weights, where the likeliest weighs 2^30.
    kept_mass: share of the mass that this stage left; 1 for an edit, which gives new logits.
    top:       the likeliest token and its probability now.
    watched:   probabilities of the tokens that were asked for; 0 where one was dropped.
    """

    name: str
    num_kept: int
    total: int
    kept_mass: float
    top_token_id: int
    top_probability: float
    watched: tuple[float, ...] = ()


@dataclass(frozen=True)
class DrawEffect:
    """The draw: the first token whose cumulative weight exceeds target.

    target: floor(u * total / 2^32).
    weight: the token's own, so that it has the targets from cumulative - weight up to cumulative.
    """

    u: int
    total: int
    target: int
    cumulative: int
    weight: int
    token_id: int


@dataclass(frozen=True)
class SamplingTrace:
    """One row through the sampler. The first effect, "logits", is the row as it came."""

    effects: tuple[StageEffect, ...]
    draw: DrawEffect | None  # None for a greedy row


@one_thread()
@torch.no_grad()
def trace(logits: Tensor, row: SamplerRow, *, watched: Sequence[int] = ()) -> SamplingTrace:
    """Sample one row again and report every stage that acts on it.

    watched: tokens whose probability is reported after each.
    Shapes: logits [V] of any float type; not a row that the sampler calls bad.
    """
    candidates = _as_it_came(logits)
    ids = torch.tensor(list(watched), dtype=torch.int64, device=logits.device)
    effects = [_effect("logits", candidates, ids, before=None)]
    for stage in stages_of(row):
        candidates = stage(candidates, [row])
        before = effects[-1].total if candidates.cut is not None else None
        effects.append(_effect(stage.name, candidates, ids, before=before))
    return SamplingTrace(tuple(effects), _drawn(candidates, row))


@dataclass(frozen=True)
class DrawOutcome:
    """What settings make of a row: how many tokens could be drawn, which was, and its share.

    watched: chances of the tokens that were asked for; of a greedy row 1 for the one it takes.
    """

    token_id: int
    probability: float
    num_kept: int
    watched: tuple[float, ...] = ()


@one_thread()
@torch.no_grad()
def outcomes(
    logits: Tensor, rows: Sequence[SamplerRow], *, watched: Sequence[int] = ()
) -> list[DrawOutcome]:
    """One row of logits under several settings: what the ends of their traces say.

    watched: tokens whose chance is reported under each.
    Shapes: logits [V], as for trace.
    """
    came = _as_it_came(logits)  # its weights are computed once for all
    found: list[DrawOutcome] = []
    for row in rows:
        candidates = came
        for stage in stages_of(row):
            candidates = stage(candidates, [row])
        drawn = _drawn(candidates, row)
        if drawn is None:
            top = first_largest(candidates.logits)
            share = float(candidates.weights[0, top]) / int(exact_sum(candidates.weights))
            certain = tuple(float(each == int(top)) for each in watched)
            found.append(DrawOutcome(int(top), share, 1, certain))
        else:
            num_kept, weights = int((candidates.weights > 0).sum()), candidates.weights[0]
            chances = tuple(int(weights[each]) / drawn.total for each in watched)
            found.append(DrawOutcome(drawn.token_id, drawn.weight / drawn.total, num_kept, chances))
    return found


def _as_it_came(logits: Tensor) -> Candidates:
    candidates = Candidates(logits.to(torch.float32)[None])
    assert bool(candidates.peak.isfinite()), "a bad row has nothing to trace"
    return candidates


def _drawn(candidates: Candidates, row: SamplerRow) -> DrawEffect | None:
    """What is drawn of what all stages left; None for a greedy row."""
    if row.params.is_greedy:
        return None
    u = uniforms([row])
    drawn = draw(candidates.weights, upload.integers(u, candidates.logits))
    token_id = int(drawn.token_ids)
    return DrawEffect(
        u=u[0],
        total=int(drawn.total),
        target=int(drawn.target),
        cumulative=int(drawn.cumulative),
        weight=int(candidates.weights[0, token_id]),
        token_id=token_id,
    )


@one_thread()
@torch.no_grad()
def shares(logits: Tensor, row: SamplerRow) -> Tensor:
    """What each token's chance is to be drawn from a row, after all that its settings ask for.

    Shapes: logits [V] -> [V] float64; a greedy row gives 1 to one token.
    """
    candidates = Candidates(logits.to(torch.float32)[None])
    for stage in stages_of(row):
        candidates = stage(candidates, [row])
    if row.params.is_greedy:
        chances = torch.zeros_like(logits, dtype=torch.float64)
        chances[int(first_largest(candidates.logits))] = 1
        return chances
    weights = candidates.weights[0].double()
    return weights / exact_sum(candidates.weights)


def _effect(
    name: str, candidates: Candidates, watched: Tensor, *, before: int | None
) -> StageEffect:
    weights = candidates.weights
    total = int(exact_sum(weights))
    top = first_largest(candidates.logits)
    return StageEffect(
        name=name,
        num_kept=int((weights > 0).sum()),
        total=total,
        kept_mass=1.0 if before is None else total / before,
        top_token_id=int(top),
        top_probability=float(weights[0, top]) / total,
        watched=tuple(cast("list[float]", (weights[0, watched].double() / total).tolist())),
    )
