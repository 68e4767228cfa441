"""Gemma 4's configuration: heads of full layers, however the file names its layers."""

from __future__ import annotations

from typing import Any

import pytest

from cutaway.models.fields import Fields
from cutaway.models.gemma4 import Gemma4

CONFIG: dict[str, Any] = {
    **{"vocab_size": 270, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 12},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8},
    **{"hidden_size_per_layer_input": 0, "max_position_embeddings": 256},
}


@pytest.mark.parametrize("name", ["5", "05"])
def test_one_layers_fields_are_found_with_a_leading_zero_too(name: str) -> None:
    """transformers pads them once there are more than ten layers."""
    layers = {name: {"head_dim": 24, "num_key_value_heads": 1}}
    config = Gemma4.from_hf(Fields({**CONFIG, "per_layer_config": layers}, file="config.json"))
    assert (config.full_head_size, config.full_num_groups) == (24, 1)


def test_without_them_the_fields_of_the_hub_count() -> None:
    given = {**CONFIG, "global_head_dim": 32, "num_global_key_value_heads": 1}
    config = Gemma4.from_hf(Fields(given, file="config.json"))
    assert (config.full_head_size, config.full_num_groups) == (32, 2)
    shared = Gemma4.from_hf(Fields({**given, "attention_k_eq_v": True}, file="config.json"))
    assert shared.full_num_groups == 1
