"""Guesses that were drawn from a distribution of their own, verified by rejection.

A guess t of chance q(t) stands with probability min(1, p(t) / q(t)); in place of one that does not,
a token is drawn from what p has above q. The token then has the distribution p, and no rule lets
more guesses stand. But which token comes depends on what was guessed: this is for requests without
a seed. It knows no sequence and no drafter.

Source: Leviathan et al. 2023, arXiv 2211.17192, appendix A.1. Specification: docs/randomness.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.sampling.candidates import Candidates, SamplerRow
from cutaway.sampling.draw import draw
from cutaway.sampling.integer_weights import WEIGHT_SCALE, exact_sum
from cutaway.sampling.logprobs import rescore
from cutaway.sampling.sampler import (
    Sampled,
    choice_of,
    edited_rows,
    rows_for_torch,
    stages_of,
)
from cutaway.sampling.threads import one_thread
from cutaway.sampling.uniform import Purpose, uniform


class Odds(NamedTuple):
    """A token's whole weight, and that of all tokens: its chance is their quotient."""

    weight: int
    total: int

    @property
    def chance(self) -> float:
        """Of being drawn."""
        return self.weight / self.total


@dataclass(frozen=True, eq=False)
class Proposal:
    """A guess and the row that it was drawn from.

    logits: [V] of any float type, which nobody writes into any more.
    """

    token_id: int
    logits: Tensor
    row: SamplerRow
    odds: Odds


@one_thread()
@torch.no_grad()
def propose(logits: Tensor, row: SamplerRow) -> Proposal:
    """Draw a guess from a drafter's row, which is no bad one, by the random number for guesses.

    Shapes: logits [V] of any float type; a copy of them is kept.
    """
    own = logits.to(torch.float32, copy=True)
    ((token_id, odds),) = draw_odds(own[None], [row], [_u(row, Purpose.PROPOSE)], [-1])
    return Proposal(token_id, own, row, odds)


def draw_odds(
    logits: Tensor, rows: Sequence[SamplerRow], u: Sequence[int], watched: Sequence[int]
) -> list[tuple[int, Odds]]:
    """The token that a random number draws of each row, and the odds of another, or its own (-1).

    Shapes: logits [R, V] float32, no row greedy or bad.
    """
    if logits.is_cpu and native.is_available() and not rows_for_torch(rows):
        choices = list(map(choice_of, rows, u, watched))
        drawn = native.RowSampler(logits).run(edited_rows(logits, rows), choices)
        return [(each.token_id, Odds(each.weight, each.weights)) for each in drawn]
    return draw_odds_plain(logits, rows, u, watched)


def draw_odds_plain(
    logits: Tensor, rows: Sequence[SamplerRow], u: Sequence[int], watched: Sequence[int]
) -> list[tuple[int, Odds]]:
    """The same in torch, on any device."""
    given: list[tuple[int, Odds]] = []
    for place, row in enumerate(rows):
        weights = _weights(logits[place], row)
        token_id = _drawn(weights, u[place])
        of = token_id if watched[place] < 0 else watched[place]
        given.append((token_id, _odds(weights, of)))
    return given


@one_thread()
@torch.no_grad()
def verify(
    logits: Tensor,
    rows: Sequence[SamplerRow],
    drawn: Sequence[Sampled],
    proposals: Sequence[Proposal],
) -> list[Sampled]:
    """What comes of the rows behind an answer's guesses, up to the first guess that falls.

    A guess that stands is what its row gave; in place of one that falls something else is. So
    accept tells one from the other as it does with guesses that have no distribution.

    rows, drawn: one more than there are guesses at least; what plain decoding draws from each. The
    last is kept where all guesses stand, and so is a bad row.
    Shapes: logits [R, V].
    """
    sound = next((i for i, each in enumerate(drawn) if each.is_bad), len(drawn))
    judged = proposals[:sound]
    wide = logits[: len(judged)].to(torch.float32)
    wanted = [each.token_id for each in judged]
    odds = draw_odds(wide, rows[: len(judged)], [0] * len(judged), wanted) if judged else []
    given: list[Sampled] = []
    for place, (proposal, (_, own)) in enumerate(zip(judged, odds, strict=True)):
        given.append(_couple(wide[place], rows[place], drawn[place], proposal, own))
        if given[-1].token_id != proposal.token_id:
            return given
    return [*given, *drawn[len(judged) :]]


def _couple(
    logits: Tensor, row: SamplerRow, plain: Sampled, proposal: Proposal, own: Odds
) -> Sampled:
    """The guess, or what is drawn in its place. own: the guess's odds here. Shapes: logits [V]."""
    guessed, u = proposal.odds, _u(row, Purpose.ACCEPT)
    # u / 2^32 < p / q, in whole numbers.
    if u * guessed.weight * own.total < (own.weight * guessed.total) << 32:
        score = rescore(plain.score, logits, proposal.token_id)
        return Sampled(proposal.token_id, u, score, plain.checksum)
    u = _u(row, Purpose.RESIDUAL)
    rest = residual(_weights(logits, row), _weights(proposal.logits, proposal.row))
    token_id = _drawn(rest, u)
    score = rescore(plain.score, logits, token_id)
    return Sampled(token_id, u, score, plain.checksum, _odds(rest, token_id).chance)


def residual(weights: Tensor, guessed: Tensor) -> Tensor:
    """Whole weights of what one distribution has above another, of which it has less somewhere.

    Shapes: [V] whole numbers in float32 each -> the same.
    """
    p, q = (each.double() / exact_sum(each) for each in (weights, guessed))
    rest = (p - q).clamp_(min=0)
    peak = rest.max()
    if not bool(peak > 0):  # what falls is below the numbers' precision
        return torch.where(q > 0, 0, weights)
    return (rest * (WEIGHT_SCALE / peak)).to(torch.float32).round_()


def purpose_of(u: int | None, row: SamplerRow) -> Purpose:
    """What a recorded random number decided at a row's position; a draw where it is another."""
    for purpose in (Purpose.ACCEPT, Purpose.RESIDUAL):
        if u == _u(row, purpose):
            return purpose
    return Purpose.DRAW


@one_thread()
@torch.no_grad()
def judge_again(
    logits: Tensor, row: SamplerRow, plain: Sampled, *, token_id: int, u: int, chance: float | None
) -> Sampled:
    """What a row gives again whose token was decided by rejection.

    That is the token, where it may come; and where it is a guess of a known chance, if it stands.
    Else it is what plain decoding draws.
    plain: what plain decoding draws.   u: as recorded.   chance: of the guess, by its drafter.
    Shapes: logits [V].
    """
    if plain.is_bad:
        return plain
    ((_, own),) = draw_odds(logits[None].to(torch.float32), [row], [0], [token_id])
    may_stand = own.weight > 0
    if purpose_of(u, row) is Purpose.ACCEPT and chance is not None:
        may_stand = u * chance < 2**32 * own.chance * (1 + 1e-12)  # both chances were rounded
    if not may_stand:
        return plain
    return Sampled(token_id, u, rescore(plain.score, logits, token_id), plain.checksum)


def _weights(logits: Tensor, row: SamplerRow) -> Tensor:
    """What each token weighs after all that a row's settings ask for. Shapes: [V] -> [V]."""
    candidates = Candidates(logits.to(torch.float32)[None])
    for stage in stages_of(row):
        candidates = stage(candidates, [row])
    return candidates.weights[0]


def _drawn(weights: Tensor, u: int) -> int:
    """The token of a random number. Shapes: [V]."""
    return int(draw(weights[None], torch.tensor([u], device=weights.device)).token_ids)


def _odds(weights: Tensor, token_id: int) -> Odds:
    return Odds(int(weights[token_id]), int(exact_sum(weights)))


def _u(row: SamplerRow, purpose: Purpose) -> int:
    return uniform(row.seed, choice=row.choice, position=row.position, purpose=purpose)
