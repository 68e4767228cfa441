"""Forms of computing: compiled blocks and 16-bit products stay near the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tiny
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import cross_entropy
from cutaway.train.model import compute_forms

BATCHES = [
    MicroBatch(
        tuple(ScoredSequence.whole(list(range(n, n + length))) for n, length in enumerate(lengths))
    )
    for lengths in ((9, 9, 9), (5, 30), (2, 3, 4, 50), (12, 12, 12))
]


def gradients(*, compiled: bool = False, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The flat gradients of each batch."""
    _, model = tiny.random_model(dtype=torch.float32)
    if dtype is not None:
        compute_forms.multiply_in(model, dtype)
    if compiled:
        compute_forms.compile_blocks(model, backend="aot_eager")
    found: list[Tensor] = []
    for batch in BATCHES:
        model.zero_grad()
        cross_entropy(likelihood(model, batch)).total.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(grad.dtype == torch.float32 for grad in grads)
        found.append(torch.cat([grad.flatten() for grad in grads]))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_give_the_same_gradients_for_any_lengths() -> None:
    """Traced and differentiated by the compiler; the lengths are not compiled in."""
    torch.compiler.reset()
    compiled = gradients(compiled=True)
    for ours, plain in zip(compiled, gradients(), strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 1e-5


def test_products_in_bfloat16_keep_float32_gradients() -> None:
    for half, plain in zip(gradients(dtype=torch.bfloat16), gradients(), strict=True):
        assert 1e-5 < float((half - plain).norm() / plain.norm()) < 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_in_bfloat16_are_near_the_plain_ones() -> None:
    """With one product for all segments of a linear map."""
    torch.compiler.reset()
    compiled = gradients(compiled=True, dtype=torch.bfloat16)
    for ours, plain in zip(compiled, gradients(dtype=torch.bfloat16), strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 0.02
