"""Qwen3.5's experts as newer files keep them: a tensor per matrix for a whole layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import architectures
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.weights.find.find import find

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")


def test_stacked_experts_are_those_of_a_tensor_each(tmp_path: Path) -> None:
    architectures.save(architectures.reference("qwen3.5-flags"), tmp_path)
    separate = loaded(tmp_path)
    file = tmp_path / "model.safetensors"
    safetensors.save_file(stacked(safetensors.load_file(file)), file, {"format": "pt"})
    together = loaded(tmp_path)
    assert separate.keys() == together.keys()
    assert all(torch.equal(value, together[name]) for name, value in separate.items())


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(find(str(folder)), EngineConfig(dtype="float32", device="cpu"))
    return dict(model.transformer.named_parameters())


def stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights, gate above up, with a leading dimension of experts."""
    made = {name: value for name, value in tensors.items() if ".experts." not in name}
    assert len(made) < len(tensors), "the model has experts"
    for layer in range(3):
        at = f"model.layers.{layer}.mlp.experts."
        matrices = [
            [tensors[f"{at}{expert}.{name}_proj.weight"] for expert in range(4)]
            for name in ("gate", "up", "down")
        ]
        gate, up, down = map(torch.stack, matrices)
        made |= {f"{at}gate_up_proj": torch.cat((gate, up), dim=1), f"{at}down_proj": down}
    return made
