"""Forms for training equal the plain ones, forward and backward: attention and experts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.blocks.moe import Experts, neighbours
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import attention, trainable_attention
from cutaway.kernels.experts import (
    mix_experts,
    mix_trainable_experts,
    score_experts,
    score_trainable_experts,
)
from cutaway.kernels.linear import trainable_product

LENGTHS = [(5, 5, 5), (1,), (7, 300, 2, 290, 1, 64, 65, 3)]


def run(
    form: object,
    lengths: tuple[int, ...],
    groups: int,
    extent: Extent,
    dtype: torch.dtype,
    device: str = "cpu",
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 16), (groups, 16), (groups, 16), (4, 16))
    query, key, value, weight = (
        torch.randn(sum(lengths), *shape, generator=generator, dtype=torch.float64).to(
            device, dtype
        )
        for shape in shapes
    )
    leaves = [each.requires_grad_() for each in (query, key, value)]
    plan = ShapePlan(lengths, lengths)
    mixed = form(*leaves, plan=plan, softmax_scale=0.3, extent=extent)  # type: ignore[operator]
    return [mixed.detach(), *torch.autograd.grad((mixed * weight).sum(), leaves)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("extent", [FULL, Window(6), Window(64), Window(1000)], ids=str)
def test_outputs_and_gradients_equal_the_plain_form(
    lengths: tuple[int, ...], groups: int, extent: Extent
) -> None:
    exact = run(attention, lengths, groups, extent, torch.float64)
    quick = run(trainable_attention, lengths, groups, extent, torch.float32)
    for ours, truth in zip(quick, exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-5, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("extent", [FULL, Window(64)], ids=str)
def test_on_a_gpu_it_stays_near_the_truth(dtype: torch.dtype, extent: Extent) -> None:
    """Variable-length attention in 16 bits, side by side in 32."""
    exact = run(attention, LENGTHS[2], 2, extent, torch.float64)
    quick = run(trainable_attention, LENGTHS[2], 2, extent, dtype, "cuda")
    bound = 0.02 if dtype == torch.bfloat16 else 2e-3
    for ours, truth in zip(quick, exact, strict=True):
        difference = (ours.cpu().double() - truth).norm() / truth.norm()
        assert float(difference) < bound


def test_what_it_does_not_do_goes_the_plain_way() -> None:
    lengths = (5, 9)
    plan = ShapePlan(lengths, lengths)
    query, key = torch.randn(14, 2, 8), torch.randn(14, 1, 8)
    for named in (
        {"cap": 3.0},
        {"sinks": torch.ones(2)},
        {"extent": Window(4, sinks=1)},
    ):
        forms = [
            form(query, key, key, plan=plan, softmax_scale=0.5, **named)  # type: ignore[arg-type]
            for form in (attention, trainable_attention)
        ]
        assert torch.equal(*forms)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_latent_rows_whose_values_are_narrower_than_their_keys(lengths: tuple[int, ...]) -> None:
    query = torch.randn(sum(lengths), 4, 24, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(sum(lengths), 1, 24, dtype=torch.float64, requires_grad=True)
    found = []
    for form, dtype in ((attention, torch.float64), (trainable_attention, torch.float32)):
        keys = rows.to(dtype)
        plan = ShapePlan(lengths, lengths)
        mixed = form(query.to(dtype), keys, keys[..., :16], plan=plan, softmax_scale=0.3)
        grads = torch.autograd.grad(mixed.double().square().sum(), (query, rows))
        found.append((mixed.double(), *grads))
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_product_with_several_matrices_and_its_gradients(dtype: torch.dtype) -> None:
    """Those of x alone too, where the matrices are frozen."""
    torch.manual_seed(0)
    x, pull = torch.randn(9, 16).to(dtype).requires_grad_(), torch.randn(9, 20).to(dtype)
    weights = [torch.randn(rows, 16, requires_grad=True) for rows in (12, 8)]
    found = trainable_product(x, weights, dtype=dtype)
    grads = torch.autograd.grad(found, [x, *weights], pull)
    exact = [each.detach().double().requires_grad_() for each in (x, *weights)]
    wanted = exact[0] @ torch.cat(exact[1:]).T
    of_exact = torch.autograd.grad(wanted, exact, pull.double())
    for ours, truth in zip((found, *grads), (wanted, *of_exact), strict=True):
        distance = float((ours - truth).detach().norm() / truth.detach().norm())
        assert distance < (1e-5 if dtype == torch.float32 else 0.02)
    assert [each.dtype for each in grads] == [dtype, torch.float32, torch.float32]
    frozen = [each.detach() for each in weights]
    (alone,) = torch.autograd.grad(trainable_product(x, frozen, dtype=dtype), x, pull)
    assert torch.equal(alone, grads[0])


def with_experts(device: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """Results and gradients of 40 rows: plain in float64, and as in training.

    Expert 3 has no row.
    """
    torch.manual_seed(0)
    experts = Experts(5, 16, 24, split=neighbours, has_bias=True).double()
    for each in experts.parameters():
        torch.nn.init.normal_(each, std=0.3)
    x, router, bias = torch.randn(40, 16), torch.randn(5, 16), torch.randn(5)
    ids = torch.randint(0, 5, (40, 2))
    ids[ids == 3] = 4
    found: list[list[Tensor]] = []
    for where, kept, mix, score in (
        ("cpu", torch.float64, mix_experts, score_experts),
        (device, torch.float32, mix_trainable_experts, score_trainable_experts),
    ):
        experts.to(where, kept)
        row, matrix = (each.to(where, kept).requires_grad_() for each in (x, router))
        weights = score(row, matrix, bias.to(where, kept)).softmax(dim=-1)[:, :2]
        named = {} if kept == torch.float64 else {"dtype": dtype}
        mixed = mix(row, ids.to(where), weights, experts, **named)
        leaves = (row, matrix, *experts.parameters())
        grads = torch.autograd.grad(mixed.square().sum(), leaves)
        found.append([each.detach().cpu().double() for each in (mixed, *grads)])
    return found


def test_experts_equal_the_plain_form_also_one_without_rows() -> None:
    for truth, ours in zip(*with_experts("cpu", torch.float32), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_experts_on_a_gpu_stay_near_the_truth(dtype: torch.dtype) -> None:
    for truth, ours in zip(*with_experts("cuda", dtype), strict=True):
        assert float((ours - truth).norm() / truth.norm()) < (
            0.03 if dtype == torch.bfloat16 else 2e-3
        )
