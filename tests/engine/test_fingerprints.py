"""Fingerprints of weights: any changed bit changes one, and others have turns meanwhile."""

from __future__ import annotations

import pytest
import torch

from cutaway.engine.loading import fingerprints as module
from cutaway.engine.loading.fingerprints import fingerprints
from cutaway.host import turns


def test_large_weights_are_summed_in_pieces_to_the_same_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(100, 33)
    whole = fingerprints(model)
    monkeypatch.setattr(module, "_PIECE_WORDS", 200)
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)
    summing = turns.in_turns(lambda: fingerprints(model))
    num_turns = 0
    while True:
        try:
            next(summing)
        except StopIteration as ended:
            assert ended.value == whole
            break
        num_turns += 1
    assert num_turns >= 100 * 33 * 4 // 8 // 200
    with torch.no_grad():
        model.weight.view(torch.int32)[32, 99] ^= 1
    assert fingerprints(model)["weight"] != whole["weight"]
