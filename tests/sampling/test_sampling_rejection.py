"""Guesses verified by rejection: the exact distribution, all that can stand, and the verdicts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from cutaway.core.request import SamplingParams
from cutaway.kernels import native
from cutaway.sampling.accept import accept
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import shares
from cutaway.sampling.rejection import (
    Guessed,
    Odds,
    Proposal,
    draw_odds,
    draw_odds_plain,
    judge_again,
    propose,
    purpose_of,
    residual,
    verify,
)
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.sampling.uniform import Purpose, uniform

P = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
Q = torch.tensor([0.2, 0.3, 0.1, 0.4]).log()
NUM_DRAWS = 4000


def row_of(seed: int, position: int = 5, **params: object) -> SamplerRow:
    return SamplerRow(params=SamplingParams(**params), seed=seed, position=position)


def come(p: torch.Tensor, q: torch.Tensor, seed: int, **params: object) -> list[Sampled]:
    """One guess from q, verified over p, and what follows it where it stands."""
    return all_come(p, q, [seed], **params)[0]


def all_come(
    p: torch.Tensor, q: torch.Tensor, seeds: Sequence[int], **params: object
) -> list[list[Sampled]]:
    """The same of many answers in one step, each with a seed of its own."""
    rows = [row_of(seed, place, **params) for seed in seeds for place in (5, 6)]
    logits = p.expand(len(rows), -1).clone()
    drawn = Sampler(len(p)).sample(logits, rows)
    guesses = propose(q.expand(len(seeds), -1), rows[::2])
    firsts = range(0, len(rows), 2)
    guessed = [Guessed(at, drawn[at : at + 2], [guesses[at // 2]]) for at in firsts]
    return verify(logits, rows, guessed)


def guess_of(q: torch.Tensor, row: SamplerRow) -> Proposal:
    """The guess that one row of a drafter gives."""
    return propose(q[None], [row])[0]


def judged(
    logits: torch.Tensor, rows: list[SamplerRow], drawn: list[Sampled], proposal: Proposal
) -> list[Sampled]:
    """What comes of the rows behind one answer's only guess."""
    return verify(logits, rows, [Guessed(0, drawn, [proposal])])[0]


def chi_square(seen: Counter[int], chances: torch.Tensor, count: int) -> float:
    kept = {token: float(p) for token, p in enumerate(chances) if p > 0}
    assert set(seen) <= set(kept), "a token came that may not"
    return sum((seen[t] - count * p) ** 2 / (count * p) for t, p in kept.items())


@pytest.mark.parametrize(
    ("params", "bound"),  # the 0.999 quantiles for 3, 2, 3 and 1 degrees of freedom
    [
        ({}, 16.27),
        ({"temperature": 1.7, "top_k": 3}, 13.82),
        ({"temperature": 0.8, "logit_bias": {3: 2.0, 0: -1.0}}, 16.27),
        ({"top_p": 0.7}, 10.83),
    ],
)
def test_what_comes_has_the_targets_distribution(params: dict[str, object], bound: float) -> None:
    given = all_come(P, Q, range(NUM_DRAWS), **params)
    exact = shares(P, row_of(0, **params))
    assert chi_square(Counter(each[0].token_id for each in given), exact, NUM_DRAWS) < bound
    # What follows a guess that stood is plain decoding's draw.
    after = Counter(each[1].token_id for each in given if len(each) == 2)
    assert chi_square(after, exact, after.total()) < bound
    # No rule lets more stand than what p and q have in common; 4 standard deviations.
    common = float(torch.minimum(exact, shares(Q, row_of(0, **params))).sum())
    assert abs(after.total() / NUM_DRAWS - common) < 4 * (0.25 / NUM_DRAWS) ** 0.5


def test_f01_drawn_guesses_stand_as_often_as_both_agree_and_leave_one_residual() -> None:
    """p = (.6, .3, .1), q = (.2, .5, .3): .6 stand; in place of one that falls comes token 0."""
    p = torch.tensor([0.6, 0.3, 0.1])
    given = all_come(p.log(), torch.tensor([0.2, 0.5, 0.3]).log(), range(NUM_DRAWS))
    stood = sum(len(each) == 2 for each in given)
    assert abs(stood / NUM_DRAWS - 0.6) < 4 * (0.24 / NUM_DRAWS) ** 0.5
    assert {each[0].token_id for each in given if len(each) == 1} == {0}
    first = Counter(each[0].token_id for each in given)
    assert chi_square(first, p, NUM_DRAWS) < 13.82


def test_verdicts_are_those_of_hand_and_accept_reads_them() -> None:
    """p = (.5, .3, .15, .05), q = (.2, .3, .1, .4): token 3 stands below u = 1/8, else 0 or 2."""
    fallen = 0
    for seed in range(300):
        given, row = come(P, Q, seed), row_of(seed)
        guess = guess_of(Q, row)
        u = uniform(seed, choice=0, position=5, purpose=Purpose.ACCEPT)
        stands = guess.token_id != 3 or u < 2**32 / 8
        emitted = accept([each.token_id for each in given], [guess.token_id][: len(given) - 1])
        assert len(given) == 1 + stands and emitted == [each.token_id for each in given]
        assert (given[0].token_id == guess.token_id) == stands
        assert purpose_of(given[0].u, row) is (Purpose.ACCEPT if stands else Purpose.RESIDUAL)
        if not stands:
            fallen += 1
            # Left are .3 of token 0 and .05 of token 2.
            share = {0: 6 / 7, 2: 1 / 7}[given[0].token_id]
            assert given[0].residual == pytest.approx(share, rel=1e-5)
    assert fallen > 60


def left(weights: list[float], guessed: list[float]) -> torch.Tensor:
    """What one row has above another."""
    return residual(torch.tensor([weights]), torch.tensor([guessed]))[0]


def test_the_residual_is_what_one_has_above_the_other() -> None:
    whole = left([5.0, 3.0, 2.0], [10.0, 60.0, 30.0])
    assert (whole / whole.sum()).tolist() == [1.0, 0.0, 0.0]
    # Below the numbers' precision nothing is left: then all that was not guessed.
    same = [4.0, 4.0, 8.0]
    assert left(same, [1.0, 0.0, 2.0]).tolist()[1] > 0
    assert left(same, same).tolist() == [0.0, 0.0, 0.0]
    assert left([2.0**30, 1.0], [2.0**30, 0.0]).tolist()[1] > 0


def test_many_answers_are_judged_as_each_alone() -> None:
    chance, size = random.Random(2), 6
    for number in range(60):
        settings = [{}, {"top_k": 3}, {"temperature": 0.6}, {"logit_bias": {1: 2.0}}]
        logits = torch.randn(12, size, generator=torch.Generator().manual_seed(number))
        rows = [row_of(number, place, **chance.choice(settings)) for place in range(12)]
        drawn = Sampler(size).sample(logits, rows)
        guessed: list[Guessed] = []
        for first, past in ((0, 1), (1, 4), (4, 8), (9, 12)):  # one row belongs to nobody
            own = logits[first : past - 1] + 0.3 * chance.random()
            own = own.flip(0) if chance.random() < 0.5 else own
            proposals = propose(own, rows[first : past - 1]) if past - 1 > first else []
            guessed.append(Guessed(first, drawn[first:past], proposals))
        alone = [verify(logits, rows, [each])[0] for each in guessed]
        assert verify(logits, rows, guessed) == alone


@pytest.mark.parametrize("params", [{}, {"temperature": 3.0}, {"top_p": 0.8}, {"min_p": 0.01}])
def test_in_place_of_a_guess_comes_what_whole_rows_leave(params: dict[str, object]) -> None:
    """The same by the weights of all tokens, not of those alone that may come."""
    fallen, size = 0, 3000
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        logits = 8 * torch.randn(2, size, generator=generator)
        rows = [row_of(seed, 5, **params), row_of(seed, 6, **params)]
        guess = guess_of(8 * torch.randn(size, generator=generator), rows[0])
        (given, *_) = judged(logits, rows, Sampler(size).sample(logits, rows), guess)
        if given.residual is None:
            continue
        fallen += 1
        p, q = (shares(each, rows[0])[None] * 2.0**30 for each in (logits[0], guess.logits))
        rest = (p / p.sum() - q / q.sum()).clamp(min=0)[0]
        rest /= rest.sum()
        u = uniform(seed, choice=0, position=5, purpose=Purpose.RESIDUAL) / 2**32
        ends = rest.double().cumsum(0)
        assert given.residual == pytest.approx(float(rest[given.token_id]), rel=1e-3, abs=1e-7)
        assert ends[given.token_id] - rest[given.token_id] - 1e-5 <= u
        assert u <= ends[given.token_id] + 1e-5
    assert fallen > 20


def test_scores_are_the_raw_rows_and_a_bad_row_stays_bad() -> None:
    row = replace(row_of(3), num_logprobs=2)
    logits = torch.stack([P, P])
    drawn = Sampler(4).sample(logits, [row, row])
    given = judged(logits, [row, row], drawn, guess_of(Q, row))[0]
    order = P.argsort(descending=True).tolist()
    assert given.score.rank == 1 + order.index(given.token_id)
    assert given.score.logprob == pytest.approx(float(P[given.token_id]), abs=1e-6)
    assert given.score.top == drawn[0].score.top and given.checksum == drawn[0].checksum
    bad = torch.stack([torch.full((4,), torch.nan), P])
    spoilt = Sampler(4).sample(bad, [row, row])
    assert judged(bad, [row, row], spoilt, guess_of(Q, row))[0].is_bad


def test_a_guess_that_cannot_come_falls_and_one_that_must_come_stands() -> None:
    one, other = torch.tensor([0.0, -100.0]), torch.tensor([-100.0, 0.0])
    assert {come(one, other, seed)[0].token_id for seed in range(50)} == {0}
    assert {len(come(one, one, seed)) for seed in range(50)} == {2}


def test_a_replay_gives_the_verdict_again_and_sees_another() -> None:
    chance = random.Random(1)
    for _ in range(200):
        seed = chance.getrandbits(63)
        row, guess = row_of(seed), guess_of(Q, row_of(seed))
        (plain,) = Sampler(4).sample(P[None], [row])
        given = come(P, Q, seed)[0]
        assert given.u is not None
        is_guess = given.token_id == guess.token_id
        told = {"token_id": given.token_id, "u": given.u}
        again = judge_again(P, row, plain, **told, chance=guess.odds.chance if is_guess else None)
        assert again[:3] == given[:3]
        if is_guess:
            # Were the token this unlikely, u would have refused it: plain decoding's draw comes.
            other = P.clone()
            other[given.token_id] = -30.0
            (drawn,) = Sampler(4).sample(other[None], [row])
            found = judge_again(other, row, drawn, **told, chance=guess.odds.chance)
            assert found == drawn


@pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 2.0, "top_p": 0.999, "min_p": 0.001},
        {"top_k": 2000, "logit_bias": {3: 4.0}},
    ],
)
@pytest.mark.parametrize("size", [7, 64, 3000])
def test_native_odds_are_those_of_torch(params: dict[str, object], size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = 3 * torch.randn(4, size, generator=generator)
    rows = [row_of(seed, **params) for seed in range(4)]
    u = [0, 2**31, 2**32 - 1, 12345]
    for watched in ([-1] * 4, [0, 3, size - 1, int(logits[3].argmax())]):
        ours = draw_odds(logits, rows, u, watched)
        for (token, odds), (plain, wanted) in zip(
            ours, draw_odds_plain(logits, rows, u, watched), strict=True
        ):
            assert (token, tuple(odds)) == (plain, tuple(wanted))


def test_a_proposal_is_drawn_by_its_own_number_from_a_copy() -> None:
    logits = Q[None].clone()
    (guess,) = propose(logits, [row_of(9)])
    assert isinstance(guess, Proposal) and guess.logits.data_ptr() != logits.data_ptr()
    rows = [row_of(seed) for seed in range(NUM_DRAWS)]
    seen = Counter(guess.token_id for guess in propose(Q.expand(NUM_DRAWS, -1), rows))
    assert chi_square(seen, Q.exp(), NUM_DRAWS) < 16.27
    assert guess.odds.chance == pytest.approx(float(Q.exp()[guess.token_id]), rel=1e-5)
    assert Odds(1, 4).chance == 0.25
