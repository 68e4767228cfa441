"""Llama against transformers, weights copied across."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from cutaway.core.step import Step

transformers = pytest.importorskip("transformers")

LONG = [1.0 + 0.1 * i for i in range(6)]
SHORT = [1.0 + 0.01 * i for i in range(6)]

CASES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "own head size": {"head_dim": 16},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "dynamic": {
        "max_position_embeddings": 32,
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    },
    "yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn with scales": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.8,
            "mscale_all_dim": 0.5,
            "truncate": False,
        }
    },
    "longrope short": {
        "rope_scaling": {
            "rope_type": "longrope",
            "factor": 2.0,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 128,
        }
    },
    "longrope long": {
        "rope_scaling": {
            "rope_type": "longrope",
            "factor": 8.0,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 32,
        }
    },
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def reference(values: dict[str, Any], seed: int) -> Any:
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms away from 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_logits_equal_transformers(name: str) -> None:
    values = tiny.config(**CASES[name])
    theirs = reference(values, seed=3)
    architecture = tiny.llama(values)
    ours = tiny.fill(architecture.build(), architecture, theirs.state_dict(), torch.float32)
    token_ids = torch.randint(0, 256, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = ours(Step.without_cache([token_ids]))
    expected = theirs(torch.tensor([token_ids])).logits[0]
    assert (logits - expected).abs().max() < 1e-4
    ours.join_segments()
    joined = ours(Step.without_cache([token_ids]))
    assert (joined - expected).abs().max() < 1e-4
