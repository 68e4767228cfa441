"""T09: operations of an update by hand, and no share of a peak that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from cutaway.models.parts.reading import read_config
from cutaway.train.model.utilization import update_flops, utilization

SMOLLM2 = {
    **tiny.BASE,
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


def flops(config: dict[str, Any], lengths: list[int]) -> float:
    architecture = read_config(config).architecture
    with torch.device("meta"):
        model = architecture.build()
    return update_flops(model, architecture.facts, lengths)


def test_t09_operations_follow_from_shapes() -> None:
    attention = 576 * (9 + 3 + 3) * 64 + 9 * 64 * 576
    matrices = 30 * (attention + 3 * 576 * 1536) + 49152 * 576  # the head; the lookup is nothing
    length = 1024
    pairs = length * (length + 1) // 2  # causal: each token sees itself and those before
    wanted = 3 * 2 * (matrices * length + 30 * pairs * 2 * 9 * 64)
    found = flops(SMOLLM2, [length])
    assert found == pytest.approx(wanted, rel=1e-12)
    assert found / length == pytest.approx(0.913e9, rel=0.002)
    assert flops(SMOLLM2, [length, length]) == pytest.approx(2 * wanted, rel=1e-12)


def test_t09_an_untied_lookup_adds_nothing_and_a_window_takes_away() -> None:
    untied = flops({**SMOLLM2, "tie_word_embeddings": False}, [1024])
    assert untied == flops(SMOLLM2, [1024])
    mistral = {**SMOLLM2, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    wide, narrow = (flops({**mistral, "sliding_window": w}, [1024]) for w in (None, 128))
    seen = sum(min(t + 1, 128) for t in range(1024))
    assert wide - narrow == pytest.approx(
        3 * 2 * 30 * 2 * 9 * 64 * (1024 * 1025 // 2 - seen), rel=1e-9
    )


def test_t09_an_unknown_device_has_no_share() -> None:
    assert utilization(989e12, 2.0, "NVIDIA H200") == 0.5
    assert utilization(989e12, 2.0, "a device of tomorrow") is None
