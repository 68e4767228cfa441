"""The fused form of attention equals the plain one, forward and backward, whatever the lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import attention, trainable_attention

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
