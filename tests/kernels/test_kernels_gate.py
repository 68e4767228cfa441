"""Activations against worked values: case J01."""

from __future__ import annotations

import pytest
import torch

from cutaway.blocks.activations import ACTIVATIONS, GATES

VALUES = {
    "gelu_tanh": {1.0: 0.841192, -2.0: -0.045402},
    "gelu": {1.0: 0.841345, -2.0: -0.045500},
    "silu": {1.0: 0.731059, -2.0: -0.238406},
    "relu": {1.0: 1.0, -2.0: 0.0},
    "relu2": {1.5: 2.25, -2.0: 0.0},
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_j01_activations_have_their_worked_values(name: str) -> None:
    for x, expected in VALUES[name].items():
        value = torch.tensor([x], dtype=torch.float64)
        assert ACTIVATIONS[name](value).item() == pytest.approx(expected, abs=1e-6)
        assert GATES[name](value, 3 * value).item() == pytest.approx(3 * x * expected, abs=1e-5)


def test_every_activation_has_a_gate() -> None:
    assert ACTIVATIONS.keys() == GATES.keys()
