"""Guesses that were drawn from a distribution of their own, verified by rejection.

A guess t of chance q(t) stands with probability min(1, p(t) / q(t)); in place of one that does not,
a token is drawn from what p has above q. The token then has the distribution p, and no rule lets
more guesses stand. But which token comes depends on what was guessed: this is for requests without
a seed. It knows no sequence and no drafter.

Source: Leviathan et al. 2023, arXiv 2211.17192, appendix A.1. Specification: docs/randomness.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates, SamplerRow, SamplerStage
from cutaway.sampling.draw import draw
from cutaway.sampling.integer_weights import WEIGHT_SCALE, exact_sum
from cutaway.sampling.logprobs import rescore, rows_at_once
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
def propose(logits: Tensor, rows: Sequence[SamplerRow]) -> list[Proposal]:
    """Draw a guess from each of a drafter's rows, no bad ones, by the random numbers for guesses.

    Shapes: logits [R, V] of any float type; a copy of them is kept.
    """
    own = logits.to(torch.float32, copy=True)
    u = [_u(row, Purpose.PROPOSE) for row in rows]
    drawn = draw_odds(own, rows, u, [-1] * len(rows))
    return [
        Proposal(token_id, own[place], rows[place], odds)
        for place, (token_id, odds) in enumerate(drawn)
    ]


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
    weights = _weights(logits, rows)
    token_ids = draw(weights, upload.integers(u, weights)).token_ids
    drawn = cast("list[int]", token_ids.tolist())
    watching = [
        token_id if wanted < 0 else wanted for token_id, wanted in zip(drawn, watched, strict=True)
    ]
    own = weights.gather(1, upload.integers(watching, weights)[:, None])[:, 0].to(torch.float64)
    pairs = cast("list[list[float]]", torch.stack([own, exact_sum(weights)], dim=1).tolist())
    return [
        (token_id, Odds(int(weight), int(total)))
        for token_id, (weight, total) in zip(drawn, pairs, strict=True)
    ]


class Guessed(NamedTuple):
    """One answer's guesses, and where the rows behind them stand.

    first:     among all rows, the one that its first guess is verified by.
    drawn:     what plain decoding draws from that row on: one more than there are guesses at least.
    """

    first: int
    drawn: Sequence[Sampled]
    proposals: Sequence[Proposal]


@one_thread()
@torch.no_grad()
def verify(
    logits: Tensor, rows: Sequence[SamplerRow], guessed: Sequence[Guessed]
) -> list[list[Sampled]]:
    """What comes of the rows behind each answer's guesses, up to the first guess that falls.

    A guess that stands is what its row gave; in place of one that falls something else is. So
    accept tells one from the other as it does with guesses that have no distribution. What plain
    decoding drew last is kept where all guesses stand, and so is a bad row.

    Shapes: logits [R, V], and as many rows.
    """
    judged = [_sound(each) for each in guessed]
    places = [
        each.first + place
        for each, proposals in zip(guessed, judged, strict=True)
        for place in range(len(proposals))
    ]
    if not places:
        return [list(each.drawn) for each in guessed]
    wide = _taken(logits, places)
    wanted = [proposal.token_id for proposals in judged for proposal in proposals]
    odds = draw_odds(wide, [rows[place] for place in places], [0] * len(places), wanted)
    given: list[list[Sampled]] = []
    fallen: list[_Fallen] = []
    first = 0  # of the answer's rows among those that are judged
    for each, proposals in zip(guessed, judged, strict=True):
        own: list[Sampled] = []
        for place, proposal in enumerate(proposals):
            row, plain = rows[each.first + place], each.drawn[place]
            u = _u(row, Purpose.ACCEPT)
            if not _stands(u, odds[first + place][1], proposal.odds):
                fallen.append(_Fallen(len(given), first + place, row, proposal, plain))
                break
            score = rescore(plain.score, wide[first + place], proposal.token_id)
            own.append(Sampled(proposal.token_id, u, score, plain.checksum))
        else:
            own += each.drawn[len(proposals) :]
        given.append(own)
        first += len(proposals)
    for some in _in_parts(fallen, wide):
        for one, sampled in zip(some, _drawn_instead(wide, some), strict=True):
            given[one.answer].append(sampled)
    return given


class _Fallen(NamedTuple):
    """A guess that fell: whose, at which of the rows that are judged, and what was drawn there."""

    answer: int
    place: int
    row: SamplerRow
    proposal: Proposal
    plain: Sampled


def _sound(guessed: Guessed) -> Sequence[Proposal]:
    """The guesses before the first bad row."""
    for place, each in enumerate(guessed.drawn):
        if each.is_bad:
            return guessed.proposals[:place]
    return guessed.proposals


def _taken(logits: Tensor, places: Sequence[int]) -> Tensor:
    """Some rows in float32, in that order: [R, V] -> [n, V]."""
    first, past = places[0], places[-1] + 1
    if past - first == len(places):
        return logits[first:past].to(torch.float32)
    return logits.index_select(0, upload.integers(places, logits)).to(torch.float32)


def _stands(u: int, own: Odds, guess: Odds) -> bool:
    """Whether u / 2^32 < p / q, in whole numbers."""
    return u * guess.weight * own.total < (own.weight * guess.total) << 32


def _in_parts(fallen: Sequence[_Fallen], logits: Tensor) -> Iterator[Sequence[_Fallen]]:
    """Parts whose rows stay in a processor's cache."""
    size = max(1, rows_at_once(logits) // 2)
    for start in range(0, len(fallen), size):
        yield fallen[start : start + size]


def _drawn_instead(logits: Tensor, fallen: Sequence[_Fallen]) -> list[Sampled]:
    """What is drawn in the place of guesses that fell. Shapes: logits [n, V]."""
    rows = [one.row for one in fallen]
    own = _taken(logits, [one.place for one in fallen])
    guessed = torch.stack([one.proposal.logits for one in fallen])
    both = torch.cat([own, guessed.to(own.device)])
    weights = _weights(both, rows + [one.proposal.row for one in fallen])
    rest = residual(weights[: len(rows)], weights[len(rows) :])
    u = [_u(row, Purpose.RESIDUAL) for row in rows]
    token_ids = draw(rest, upload.integers(u, rest)).token_ids
    chosen = rest.gather(1, token_ids[:, None])[:, 0].to(torch.float64) / exact_sum(rest)
    drawn, shares = cast("list[int]", token_ids.tolist()), cast("list[float]", chosen.tolist())
    return [
        Sampled(
            token_id, each_u, rescore(one.plain.score, row, token_id), one.plain.checksum, share
        )
        for one, row, token_id, each_u, share in zip(fallen, own, drawn, u, shares, strict=True)
    ]


def residual(weights: Tensor, guessed: Tensor) -> Tensor:
    """Whole weights of what one distribution has above another, of which it has less somewhere.

    Shapes: [R, V] whole numbers in float32 each -> the same.
    """
    p, q = (each.double() / exact_sum(each)[:, None] for each in (weights, guessed))
    rest = (p - q).clamp_(min=0)
    peak = rest.amax(dim=-1, keepdim=True)
    scaled = (rest * (WEIGHT_SCALE / peak)).to(torch.float32).round_()
    # Where what falls is below the numbers' precision, all that was not guessed may come.
    return torch.where(peak > 0, scaled, torch.where(guessed > 0, 0, weights))


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


def _weights(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """What each token weighs after all that the rows' settings ask for. Shapes: [R, V] -> [R, V].

    Rows are float32.
    """
    alike: dict[tuple[SamplerStage, ...], list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(stages_of(row), []).append(place)
    weights: Tensor | None = None
    for stages, places in alike.items():
        candidates = Candidates(logits if len(alike) == 1 else _taken(logits, places))
        for stage in stages:
            candidates = stage(candidates, [rows[place] for place in places])
        if len(alike) == 1:
            return candidates.weights
        weights = torch.empty_like(logits) if weights is None else weights
        weights[upload.integers(places, logits)] = candidates.weights
    assert weights is not None, "there is a row"
    return weights


def _u(row: SamplerRow, purpose: Purpose) -> int:
    return uniform(row.seed, choice=row.choice, position=row.position, purpose=purpose)
