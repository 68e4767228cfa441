"""Rows of heads that files keep as rotary pairs: read, saved, and met by adapters in that order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cutaway.core.weight_targets import PairedRows
from cutaway.models.parts.architecture import Architecture
from cutaway.models.parts.reading import read_config
from cutaway.train.model.model_folder import fill, stored_tensors
from cutaway.weights.adapter import merge, put_on, read_adapter, write_adapter
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.load import in_own_order, in_stored_order

GLM = {
    **{"architectures": ["Glm4ForCausalLM"], "vocab_size": 30, "hidden_size": 16},
    **{"intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "head_dim": 12, "rms_norm_eps": 1e-5},
}
QUERY = "model.layers.0.self_attn.q_proj"
PAIRS = PairedRows(2, 12, 6)  # half of each head turns


@pytest.fixture
def architecture() -> Architecture:
    return read_config(GLM).architecture


def made(architecture: Architecture, seed: int) -> torch.nn.Module:
    transformer = architecture.build()
    fill(transformer, architecture, seed=seed)
    return transformer


def test_what_turns_together_comes_apart_and_the_rest_stays() -> None:
    head = [0, 2, 4, 1, 3, 5, *range(6, 12)]
    assert PAIRS.order(30) == [*head, *(12 + row for row in head), *range(24, 30)]


@pytest.mark.parametrize(
    ("pairs", "shape"),
    [(PAIRS, (30, 3)), (PAIRS, (24,)), (PairedRows(1, 8, 8, axis=1), (5, 8))],
)
def test_the_two_ways_are_inverse(pairs: PairedRows, shape: tuple[int, ...]) -> None:
    stored = torch.rand(shape)
    own = in_own_order(stored, pairs)
    assert not torch.equal(own, stored)
    assert torch.equal(in_stored_order(own, pairs), stored)


def test_a_model_is_saved_in_the_order_of_its_files(architecture: Architecture) -> None:
    transformer = made(architecture, 1)
    saved = stored_tensors(transformer, architecture)[f"{QUERY}.weight"]
    own = transformer.get_parameter("blocks.0.attention.qkv.segments.0.weight")
    assert torch.equal(in_own_order(saved, PAIRS), own)


def test_an_adapter_is_written_and_read_in_the_order_of_its_files(
    architecture: Architecture, tmp_path: Path
) -> None:
    targets = architecture.targets("hf")
    transformer = made(architecture, 1)
    before = stored_tensors(transformer, architecture)[f"{QUERY}.weight"]
    (pair,) = put_on(transformer, targets, rank=2, modules=("q_proj",), seed=3)
    torch.nn.init.normal_(pair.adapter_up)
    write_adapter(tmp_path, transformer, targets)
    merge(transformer)
    merged = stored_tensors(transformer, architecture)[f"{QUERY}.weight"]

    written = SafetensorsWeights(tmp_path, single="adapter_model.safetensors")
    down, up = (written.tensor(f"base_model.model.{QUERY}.lora_{side}.weight") for side in "AB")
    torch.testing.assert_close(merged, before + pair.scale * up @ down)

    again = made(architecture, 1)
    read_adapter(tmp_path, again, targets)
    merge(again)
    read = stored_tensors(again, architecture)[f"{QUERY}.weight"]
    torch.testing.assert_close(read, merged)
