"""PPO's and GRPO's losses: worked values, what the clip stops, and how tokens count."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cutaway.train.losses.policy_losses import (
    GROUP_FORMS,
    Clip,
    GroupForm,
    clipped_surrogate,
    clipped_value,
    count_of,
    entropy,
    group_surrogate,
    num_clipped,
)

LENGTHS = (2, 3, 1)


def tokens(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# T38: the clip has no effect, or stops the wrong side.
@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "is_stopped"),
    [
        (1.0, 1.5, -1.2, True),
        (-1.0, 1.5, 1.5, False),
        (1.0, 0.5, -0.5, False),
        (-1.0, 0.5, 0.8, True),
        (1.0, 1.1, -1.1, False),
    ],
)
def test_t38_the_clip_stops_what_moved_far_and_gained(
    advantage: float, ratio: float, loss: float, is_stopped: bool
) -> None:
    new = tokens(math.log(ratio)).requires_grad_()
    found = clipped_surrogate(new, tokens(0.0), tokens(advantage), Clip())
    assert float(found.total.detach()) == pytest.approx(loss)
    (grad,) = torch.autograd.grad(found.total, new)
    assert (float(grad) == 0) is is_stopped
    assert num_clipped(new, tokens(0.0), tokens(advantage), Clip()) == is_stopped


def test_the_first_step_has_the_gradient_of_the_policy() -> None:
    """At ratio 1 nothing is clipped: the gradient is minus the advantage."""
    old, advantages = tokens(-1.0, -2.0, -0.5), tokens(0.3, -2.0, 1.0)
    new = old.clone().requires_grad_()
    (grad,) = torch.autograd.grad(clipped_surrogate(new, old, advantages, Clip()).total, new)
    torch.testing.assert_close(grad, -advantages)


def test_values_are_held_near_what_they_were() -> None:
    value = clipped_value(tokens(1.0), tokens(0.0), tokens(1.0))
    assert float(value.total) == pytest.approx(0.5 * (0.2 - 1) ** 2)  # right, but moved too far
    value = clipped_value(tokens(0.1), tokens(0.0), tokens(1.0))
    assert float(value.total) == pytest.approx(0.5 * 0.9**2)
    assert value.count == 1


def test_gradients_are_those_of_differences() -> None:
    old = tokens(-1.0, -0.3, -2.0)
    new = (old + tokens(0.05, -0.11, 0.4)).requires_grad_()
    advantages = tokens(0.7, -0.4, 1.1)
    assert torch.autograd.gradcheck(
        lambda x: clipped_surrogate(x, old, advantages, Clip()).total, new
    )
    assert torch.autograd.gradcheck(lambda x: clipped_value(x, old, advantages).total, new)


@pytest.mark.parametrize("form", GROUP_FORMS)
def test_gradients_of_groups_are_those_of_differences(form: GroupForm) -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(6, generator=generator, dtype=torch.float64)
    new = (old + 0.05 * torch.randn(6, generator=generator, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: group(x, old, form), new)


def group(new: Tensor, old: Tensor, form: GroupForm) -> Tensor:
    loss = group_surrogate(
        new,
        old,
        tokens(1.0, -0.5, 0.25),
        lengths=LENGTHS,
        clip=Clip(0.2, 0.28),
        form=form,
        most_tokens=10,
    )
    return loss.total / loss.count


def test_forms_count_tokens_as_they_say() -> None:
    """At ratio 1: -A summed over tokens, by lengths 2, 3, 1 and advantages 1, -.5, .25."""
    old = torch.zeros(6, dtype=torch.float64)
    by_token = -(2 * 1.0 - 3 * 0.5 + 0.25)
    by_answer = -(1.0 - 0.5 + 0.25)
    assert float(group(old, old, "tokens")) == pytest.approx(by_token / 6)
    assert float(group(old, old, "dr_grpo")) == pytest.approx(by_token / 30)
    assert float(group(old, old, "answers")) == pytest.approx(by_answer / 3)
    assert float(group(old, old, "gspo")) == pytest.approx(by_answer / 3)


def test_gspo_moves_all_tokens_of_an_answer_by_one_ratio() -> None:
    old = torch.zeros(2, dtype=torch.float64)
    new = tokens(0.2, -0.1)
    loss = group_surrogate(new, old, tokens(1.0), lengths=[2], clip=Clip(), form="gspo")
    assert float(loss.total) == pytest.approx(-math.exp(0.05))


# T41: a group's loss divided once more under accumulation.
@pytest.mark.parametrize("form", GROUP_FORMS)
def test_t41_parts_of_a_batch_add_up_to_the_whole(form: GroupForm) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 6, (8,), generator=generator).tolist()
    old, shift = torch.randn(2, sum(lengths), generator=generator, dtype=torch.float64)
    advantages = torch.randn(8, generator=generator, dtype=torch.float64)

    def gradient(parts: list[range]) -> Tensor:
        new = (old + 0.2 * shift).requires_grad_()
        total, count = torch.zeros((), dtype=torch.float64), 0
        for part in parts:
            first, past = sum(lengths[: part.start]), sum(lengths[: part.stop])
            loss = group_surrogate(
                new[first:past],
                old[first:past],
                advantages[part.start : part.stop],
                lengths=lengths[part.start : part.stop],
                clip=Clip(),
                form=form,
                most_tokens=7,
            )
            total, count = total + loss.total, count + loss.count
        (grad,) = torch.autograd.grad(total / count, new)
        assert count == count_of(lengths, form, most_tokens=7)
        return grad

    whole = gradient([range(8)])
    torch.testing.assert_close(
        gradient([range(2 * i, 2 * i + 2) for i in range(4)]), whole, atol=1e-12, rtol=0
    )


def test_penalties_count_as_tokens_do() -> None:
    old = torch.zeros(6, dtype=torch.float64)
    for form in GROUP_FORMS:
        plain, penal = (
            group_surrogate(
                old,
                old,
                tokens(0.0, 0.0, 0.0),
                lengths=LENGTHS,
                clip=Clip(),
                form=form,  # type: ignore[arg-type]
                most_tokens=10,
                penalties=penalties,
            )
            for penalties in (None, torch.ones(6, dtype=torch.float64))
        )
        assert float(plain.total) == 0
        expected = {"tokens": 1.0, "dr_grpo": 6 / 30}.get(form, 1.0)
        assert float(penal.total / penal.count) == pytest.approx(expected), form


def test_entropy_of_a_row() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -torch.inf, 0.0, -torch.inf]])
    torch.testing.assert_close(entropy(logits), torch.tensor([math.log(4), math.log(2)]))
    some = torch.randn(2, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(entropy, some)
    banned = torch.tensor([[0.3, -torch.inf, 0.1]], requires_grad=True)
    (grad,) = torch.autograd.grad(entropy(banned).sum(), banned)
    assert bool(grad.isfinite().all())
