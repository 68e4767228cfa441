"""T45: an adapter over packed weights is trained on the very numbers that are served."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.linear import LowRankPair, LowRankPairs, project
from cutaway.quantize.adapted import adapt
from cutaway.quantize.packed import Packed

pytestmark = pytest.mark.skipif(
    not native.is_available(), reason="the native kernels are not built: run `make native`"
)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", [native.Kind.Q8, native.Kind.Q4_AFFINE])
def test_t45_the_base_of_training_is_what_is_packed(kind: native.Kind) -> None:
    matrix = drawn(48, 64, seed=1)
    packed = Packed(native.PackedWeight.from_matrix(matrix, kind))
    before, kept = packed.packed.data.clone(), packed.dense()
    assert float((kept - matrix).abs().max()) > 1e-3, "packing rounds, so the two are told apart"
    trained = adapt(packed, rank=4, alpha=8.0, seed=0)
    x, wanted = drawn(40, 64, seed=2), drawn(40, 48, seed=3)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    losses: list[float] = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (trained.multiply(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert torch.equal(packed.packed.data, before), "the base is never changed"
    with torch.no_grad():
        theirs = trained.multiply(x)
        pair = LowRankPair(trained.adapter_down, trained.scale * trained.adapter_up)
        pairs = LowRankPairs((48,), [[pair]])
        zeros = torch.zeros(40, dtype=torch.int64)
        served = project(x, [packed], None, pairs, zeros)
        torch.testing.assert_close(served, theirs, rtol=1e-5, atol=1e-5)
        by_hand = x @ kept.T + trained.scale * (x @ trained.adapter_down.T) @ trained.adapter_up.T
        torch.testing.assert_close(theirs, by_hand, rtol=1e-5, atol=1e-5)
        elsewhere = theirs - x @ kept.T + x @ matrix.T
        assert float((served - elsewhere).abs().max()) > 1e-2, "on other numbers it is another"
