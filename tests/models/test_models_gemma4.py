"""Gemma 4's configuration: heads of full layers however named, and whose keys a layer uses."""

from __future__ import annotations

from typing import Any

import pytest

from cutaway.core.errors import ModelFormatError
from cutaway.models import gemma4
from cutaway.models.parts.config_fields import Fields

CONFIG: dict[str, Any] = {
    **{"vocab_size": 270, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 12},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8},
    **{"hidden_size_per_layer_input": 0, "max_position_embeddings": 256},
}


@pytest.mark.parametrize("name", ["5", "05"])
def test_one_layers_fields_are_found_with_a_leading_zero_too(name: str) -> None:
    """transformers pads them once there are more than ten layers."""
    layers = {name: {"head_dim": 24, "num_key_value_heads": 1}}
    config = gemma4.from_hf(Fields({**CONFIG, "per_layer_config": layers}, file="config.json"))
    assert (config.full_head_size, config.full_num_groups) == (24, 1)


def test_without_them_the_fields_of_the_hub_count() -> None:
    given = {**CONFIG, "global_head_dim": 32, "num_global_key_value_heads": 1}
    config = gemma4.from_hf(Fields(given, file="config.json"))
    assert (config.full_head_size, config.full_num_groups) == (32, 2)
    shared = gemma4.from_hf(Fields({**given, "attention_k_eq_v": True}, file="config.json"))
    assert shared.full_num_groups == 1


def test_a_layer_without_keys_uses_those_of_the_last_of_its_kind() -> None:
    given = {**CONFIG, "num_kv_shared_layers": 5}
    config = gemma4.from_hf(Fields(given, file="config.json"))
    assert config.sources == (*[None] * 7, 6, 6, 6, 6, 5)
    assert [spec.source for spec in config.facts.cache_specs] == list(config.sources)


def test_a_kind_of_layer_needs_keys_once() -> None:
    given = {**CONFIG, "num_kv_shared_layers": 7}
    with pytest.raises(ModelFormatError) as fault:
        gemma4.from_hf(Fields(given, file="config.json"))
    assert "num_kv_shared_layers: is 7; of each kind of layer" in str(fault.value)


def test_keys_that_a_file_has_for_such_a_layer_are_left_alone() -> None:
    given = {**CONFIG, "num_kv_shared_layers": 5, "num_hidden_layers": 12}
    config = gemma4.from_hf(Fields(given, file="config.json"))
    stored = "model.layers.11.self_attn.k_proj.weight"
    assert stored in config.optional("hf") and stored not in config.targets("hf")
    assert "model.layers.5.self_attn.k_proj.weight" not in config.optional("hf")
