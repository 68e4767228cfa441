"""Estimates of KL divergence and whole ones: worked values, the right gradients, no NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.train.losses.divergences import (
    DIVERGENCES,
    acceptance,
    distances,
    draft_loss,
    forward_kl,
    jensen_shannon,
    k1,
    k2,
    k3,
    kl_penalties,
    reverse_kl,
)

P = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
Q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
TRUE_GRADIENT = torch.tensor([0.175945, -0.098118, -0.077827], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "expected"), [(k1, 0.085123), (k2, 0.080088), (k3, 0.085123)]
)
def test_expectations_of_the_estimators(estimator: object, expected: float) -> None:
    assert callable(estimator)
    assert float((P * estimator(P.log(), Q.log())).sum()) == pytest.approx(expected, abs=1e-6)


def test_k3_is_never_negative_and_k1_may_be() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 1000, generator=generator).mul(0.01)
    assert float(k3(ours, theirs).min()) >= 0  # r - 1 - log r in float32 falls below
    assert float(k1(ours, theirs).min()) < 0


# T36: KL as a loss has the wrong gradient or none.
def test_t36_the_penalty_has_the_gradient_of_kl() -> None:
    torch.testing.assert_close(gradient(kl_penalties), TRUE_GRADIENT, atol=1e-6, rtol=0)


def test_t36_k1_has_no_gradient_and_k3_alone_that_of_the_other_kl() -> None:
    wrong = gradient(lambda new, old, reference: k1(new, reference))
    torch.testing.assert_close(wrong, torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    other = gradient(lambda new, old, reference: k3(new, reference))
    torch.testing.assert_close(other, torch.tensor([0.2, -0.1, -0.1], dtype=torch.float64))
    right = gradient(lambda new, old, reference: k2(new, reference))
    torch.testing.assert_close(right, TRUE_GRADIENT, atol=1e-6, rtol=0)


def gradient(penalty: object) -> Tensor:
    """Of a penalty's expectation over samples of the old model, by the new one's logits."""
    assert callable(penalty)
    logits = P.log().requires_grad_()
    new = logits.log_softmax(-1)
    (P * penalty(new, P.log(), Q.log())).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_the_reference_gets_no_gradient() -> None:
    reference = Q.log().requires_grad_()
    kl_penalties(P.log().requires_grad_(), P.log(), reference).sum().backward()
    assert reference.grad is None


# T48: the KL the wrong way round; divided by tokens twice.
def test_t48_each_divergence_is_the_one_that_it_names() -> None:
    teacher, student = P.log()[None], Q.log()[None]
    assert float(forward_kl(teacher, student)) == pytest.approx(0.085123, abs=1e-6)
    assert float(reverse_kl(teacher, student)) == pytest.approx(0.092033, abs=1e-6)
    middle = (P + Q) / 2
    halves = (P * (P / middle).log()).sum() / 2 + (Q * (Q / middle).log()).sum() / 2
    assert float(jensen_shannon(teacher, student)) == pytest.approx(float(halves))


@pytest.mark.parametrize("name", list(DIVERGENCES))
def test_t48_twice_the_rows_change_none(name: str) -> None:
    teacher, student = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(1))
    once = distances(teacher, student, divergence=DIVERGENCES[name])
    twice = distances(teacher.repeat(2, 1), student.repeat(2, 1), divergence=DIVERGENCES[name])
    torch.testing.assert_close(twice, once.repeat(2))


@pytest.mark.parametrize("name", list(DIVERGENCES))
@pytest.mark.parametrize("top_k", [None, 3])
def test_gradients_are_those_of_differences(name: str, top_k: int | None) -> None:
    teacher, student = torch.randn(
        2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )

    def total(logits: Tensor) -> Tensor:
        found = distances(
            teacher, logits, divergence=DIVERGENCES[name], temperature=1.7, top_k=top_k
        )
        return found.sum()

    assert torch.autograd.gradcheck(total, student.requires_grad_())


def test_the_teacher_gets_no_gradient() -> None:
    teacher = torch.randn(2, 5).requires_grad_()
    distances(teacher, torch.randn(2, 5).requires_grad_()).sum().backward()
    assert teacher.grad is None


def test_a_distribution_is_no_distance_from_itself() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(3))
    for divergence in DIVERGENCES.values():
        assert float(distances(logits, logits, divergence=divergence).sum()) == pytest.approx(
            0, abs=1e-6
        )


def test_the_likeliest_and_the_rest_say_no_more_than_all() -> None:
    """Together tokens tell less: the divergence falls, and reaches the whole with all of them."""
    teacher, student = torch.randn(
        2, 4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    found = [float(distances(teacher, student, top_k=k).sum()) for k in (1, 3, 6, 10, 11, 40)]
    assert found == sorted(found)
    assert found[-1] == float(distances(teacher, student).sum())
    assert 0 < found[0] < found[-2]


def test_tokens_that_the_teacher_cannot_say_give_no_nan() -> None:
    teacher = torch.tensor([[1.0, -torch.inf, 0.5, -torch.inf]])
    student = torch.tensor([[0.3, 0.1, 0.2, -torch.inf]]).requires_grad_()
    for top_k in (None, 2):
        total = distances(teacher, student, top_k=top_k).sum()
        (grad,) = torch.autograd.grad(total, student)
        assert bool(total.isfinite())
        assert bool(grad.isfinite().all())


def test_a_temperature_keeps_gradients_of_one_size() -> None:
    teacher, student = torch.randn(2, 6, 20, generator=torch.Generator().manual_seed(5)).mul(0.1)
    sizes: list[float] = []
    for temperature in (1.0, 4.0):
        logits = student.clone().requires_grad_()
        distances(teacher, logits, temperature=temperature).sum().backward()
        assert logits.grad is not None
        sizes.append(float(logits.grad.norm()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_acceptance_is_what_two_distributions_share() -> None:
    assert float(acceptance(P.log()[None], Q.log()[None])) == pytest.approx(0.5 + 0.2 + 0.1)
    assert float(acceptance(P.log()[None], P.log()[None])) == pytest.approx(1)


def test_a_drafts_later_passes_weigh_less() -> None:
    teacher = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    wanted = teacher.softmax(-1)
    entropy = float(-(wanted * wanted.log()).sum())
    loss = draft_loss(teacher, [teacher, teacher, teacher])
    assert loss.count == 3
    assert float(loss.total) == pytest.approx(entropy * (1 + 0.8 + 0.64))
