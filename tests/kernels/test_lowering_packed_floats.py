"""A float matrix is packed once, however often its model is recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from native_cases import needs_native
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.lowering import packed_floats

pytestmark = needs_native


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What is packed."""
    made: list[Tensor] = []
    pack = native.PackedWeight.from_matrix
    monkeypatch.setattr(
        native.PackedWeight, "from_matrix", lambda w, kind: made.append(w) or pack(w, kind)
    )
    return made


def test_a_routers_matrix_is_packed_again_only_when_it_changed(made: list[Tensor]) -> None:
    one, other = torch.nn.Parameter(torch.randn(8, 64)), torch.randn(8, 64)
    first = packed_floats.packed_matrix(one)
    assert packed_floats.packed_matrix(one) is first and len(made) == 1
    assert packed_floats.packed_matrix(other) is not first and len(made) == 2
    with torch.no_grad():
        one.mul_(2)
    again = packed_floats.packed_matrix(one)
    assert again is not first and torch.equal(again.dense(), one.detach())
    made.clear()
    gc.collect()  # matrices of other tests may still wait for the collector
    before = len(packed_floats._KEPT)
    del one
    gc.collect()
    assert len(packed_floats._KEPT) == before - 1, "what is packed goes with its matrix"


@torch.no_grad()
def test_matrices_of_heads_are_packed_once_though_each_forward_views_them_anew(
    made: list[Tensor],
) -> None:
    up = torch.nn.Parameter(torch.randn(4 * 48, 32))

    def keys() -> Tensor:
        return up.view(4, 48, 32)[:, :16].transpose(1, 2)

    def values() -> Tensor:
        return up.view(4, 48, 32)[:, 16:]

    def check(view: Callable[[], Tensor]) -> native.WeightStack:
        stack = packed_floats.packed_stack(view())
        assert packed_floats.packed_stack(view()) is stack
        for index, matrix in enumerate(view()):
            assert torch.equal(stack.matrix(index).dense(), matrix)
        return stack

    before = check(keys), check(values)
    assert len(made) == 8
    up.add_(1)
    after = check(keys), check(values)
    assert len(made) == 16 and before[0] is not after[0]
