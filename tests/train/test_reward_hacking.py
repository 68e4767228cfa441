"""T42: what a policy does that is paid for length alone, without a leash and with one.

The policy is a table: at each of some places an answer ends, or goes on. A verifier wants answers
that end by themselves; the reward is their length. Sampling, rewards with KL, advantages and the
clipped loss are PPO's own.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from cutaway.train.losses.divergences import k1, k3
from cutaway.train.losses.policy_losses import Clip, clipped_surrogate
from cutaway.train.rollouts.advantages import estimate, token_rewards, whiten

MOST = 8  # tokens of an answer
ANSWERS = 256
ENDS = 1  # of the two choices at a place


class Outcome(NamedTuple):
    """Of the last round: mean length, share that ended, and mean KL of an answer in nats."""

    length: float
    ended: float
    distance: float


def sampled(table: Tensor) -> tuple[list[Tensor], list[bool]]:
    """Choices of each answer, and whether it ended. Shapes: table [MOST, 2]."""
    drawn = torch.multinomial(table.softmax(-1), ANSWERS, replacement=True).T  # [ANSWERS, MOST]
    answers, ended = list[Tensor](), list[bool]()
    for row in drawn:
        stops = (row == ENDS).nonzero()[:, 0]
        ended.append(len(stops) > 0)
        answers.append(row[: int(stops[0]) + 1] if len(stops) else row)
    return answers, ended


def learned(*, beta: float, rounds: int = 60) -> tuple[Outcome, Outcome]:
    """The first and the last round of a policy that is paid for length."""
    torch.manual_seed(0)
    reference = torch.zeros(MOST, 2)  # every answer ends at each place in half of all cases
    table = reference.clone().requires_grad_()
    optimizer = torch.optim.Adam([table], lr=0.05)
    outcomes: list[Outcome] = []
    for _ in range(rounds):
        answers, ended = sampled(table.detach())
        lengths = [len(each) for each in answers]
        places = torch.cat([torch.arange(count) for count in lengths])
        choices = torch.cat(answers)
        old = table.detach().log_softmax(-1)[places, choices]
        theirs = reference.log_softmax(-1)[places, choices]
        scores = [count / MOST for count in lengths]
        rewards = token_rewards(scores, k1(old, theirs), lengths=lengths, beta=beta)
        found = estimate(
            rewards, torch.zeros(len(rewards)), lengths=lengths, discount=1.0, decay=0.95
        )
        advantages = whiten(found.advantages)
        for _ in range(4):
            new = table.log_softmax(-1)[places, choices]
            loss = clipped_surrogate(new, old, advantages, Clip())
            optimizer.zero_grad()
            (loss.total / loss.count).backward()
            optimizer.step()
        distance = float(k3(old, theirs).sum()) / ANSWERS
        outcomes.append(Outcome(sum(lengths) / ANSWERS, sum(ended) / ANSWERS, distance))
    return outcomes[0], outcomes[-1]


def test_t42_without_a_leash_what_is_paid_rises_and_what_is_wanted_falls() -> None:
    first, last = learned(beta=0.0)
    assert first.ended > 0.98
    assert last.length > 2 * first.length, "what it is paid for rises"
    assert last.ended < first.ended - 0.2, "and what is wanted falls: it is hacked"


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_t42_with_one_the_reward_rises_and_nothing_is_lost(beta: float) -> None:
    first, last = learned(beta=beta)
    free = learned(beta=0.0)[1]
    assert last.length > first.length, "the reward still rises"
    assert last.ended >= first.ended - 0.02, "by no more than two points may the verifier's fall"
    assert last.distance < free.distance / 4
