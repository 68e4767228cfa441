"""A router's matrix is packed once, however often its model is recorded."""

from __future__ import annotations

import gc

import pytest
import torch
from native_cases import needs_native

from cutaway.kernels import native
from cutaway.kernels.lowering import experts


@needs_native
def test_a_routers_matrix_is_packed_again_only_when_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[torch.Tensor] = []
    pack = native.PackedWeight.from_matrix
    monkeypatch.setattr(
        native.PackedWeight, "from_matrix", lambda w, kind: made.append(w) or pack(w, kind)
    )
    one, other = torch.nn.Parameter(torch.randn(8, 64)), torch.randn(8, 64)
    first = experts._packed(one)
    assert experts._packed(one) is first and len(made) == 1
    assert experts._packed(other) is not first and len(made) == 2
    with torch.no_grad():
        one.mul_(2)
    again = experts._packed(one)
    assert again is not first and torch.equal(again.dense(), one.detach())
    made.clear()
    before = len(experts._PACKED)
    del one
    gc.collect()
    assert len(experts._PACKED) == before - 1, "what is packed goes with its matrix"
