"""The shape of a model whose training takes a moment, as a stage's settings have it."""

from __future__ import annotations

import json

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def model_table() -> str:
    """The table `[model]` of a configuration in TOML."""
    fields = "\n".join(f"{key} = {json.dumps(value)}" for key, value in SHAPE.items())
    return f"[model]\n{fields}\n"
