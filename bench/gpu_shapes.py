"""Shapes and requests that bench/gpu_decode.py and its peers share. Free of torch."""

from __future__ import annotations

import random
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936},
        **{"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072},
        **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
        **{"rope_theta": 1000000.0, "tie_word_embeddings": True},
    },
    "llama3-8b": {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256},
        **{"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        **{"rope_theta": 500000.0, "tie_word_embeddings": False},
    },
    "qwen3-30b-a3b": {
        **{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        **{"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48},
        **{"intermediate_size": 6144, "moe_intermediate_size": 768, "decoder_sparse_step": 1},
        **{"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True},
        **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
        **{"rope_theta": 1000000.0, "tie_word_embeddings": False},
    },
}
COMMON = {"hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}


def nano_requests() -> tuple[list[list[int]], list[int]]:
    """Prompts and lengths of answers of nano-vllm's bench.py: 256, of 100 to 1,024 tokens each."""
    chance = random.Random(0)
    prompts = [
        [chance.randint(0, 10000) for _ in range(chance.randint(100, 1024))] for _ in range(256)
    ]
    return prompts, [chance.randint(100, 1024) for _ in range(256)]
