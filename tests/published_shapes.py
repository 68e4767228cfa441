"""Configurations of released models for tests of arithmetic, with where their values are from."""

from __future__ import annotations

import json
from typing import Any

# Classes of transformers whose defaults are a configuration; where they equal a released model's,
# the name says which.
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "ArceeForCausalLM": ("ArceeConfig", {}),
    "CohereForCausalLM": ("CohereConfig", {}),
    "Cohere2ForCausalLM": ("Cohere2Config", {}),
    "DeepseekV2ForCausalLM": ("DeepseekV2Config", {"num_experts_per_tok": 6}),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", {}),  # DeepSeek-V3
    "Ernie4_5ForCausalLM": ("Ernie4_5Config", {}),  # ERNIE-4.5-0.3B
    "Ernie4_5_MoeForCausalLM": ("Ernie4_5_MoeConfig", {}),  # ERNIE-4.5-21B-A3B
    "GPT2LMHeadModel": ("GPT2Config", {}),  # gpt2
    "Gemma2ForCausalLM": ("Gemma2Config", {}),  # gemma-2-2b
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {}),
    "Gemma4ForCausalLM": ("Gemma4TextConfig", {}),
    "GlmForCausalLM": ("GlmConfig", {"pad_token_id": None}),  # glm-4-9b
    "Glm4ForCausalLM": ("Glm4Config", {"pad_token_id": None}),
    "GptOssForCausalLM": ("GptOssConfig", {}),  # gpt-oss-120b
    "GraniteForCausalLM": ("GraniteConfig", {}),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", {}),
    "Lfm2ForCausalLM": ("Lfm2Config", {}),
    "LlamaForCausalLM": ("LlamaConfig", {}),  # Llama-2-7b
    "MistralForCausalLM": ("MistralConfig", {}),  # Mistral-7B-v0.1
    "MixtralForCausalLM": ("MixtralConfig", {}),  # Mixtral-8x7B
    "NanoChatForCausalLM": ("NanoChatConfig", {}),
    "OlmoForCausalLM": ("OlmoConfig", {}),  # OLMo-7B
    "Olmo2ForCausalLM": ("Olmo2Config", {}),
    "Olmo3ForCausalLM": ("Olmo3Config", {}),
    "OlmoeForCausalLM": ("OlmoeConfig", {}),  # OLMoE-1B-7B
    "Phi3ForCausalLM": ("Phi3Config", {"pad_token_id": None}),  # Phi-3-mini-4k
    "Qwen2ForCausalLM": ("Qwen2Config", {}),
    "Qwen2MoeForCausalLM": ("Qwen2MoeConfig", {}),
    "Qwen3ForCausalLM": ("Qwen3Config", {}),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", {}),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", {}),  # Qwen3-Next-80B-A3B
    "Qwen3_5ForCausalLM": ("Qwen3_5TextConfig", {}),
    "Qwen3_5MoeForCausalLM": ("Qwen3_5MoeTextConfig", {}),
    "SmolLM3ForCausalLM": ("SmolLM3Config", {"pad_token_id": None}),  # SmolLM3-3B
}

# Llama 3 report, arXiv 2407.21783, table 3; the vocabulary as in the released config.json.
LLAMA_3_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip

# What a second configuration of each class changes: every flag that moves a size.
FLAGS: dict[str, dict[str, Any]] = {
    "ArceeForCausalLM": {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "CohereForCausalLM": {"use_qk_norm": True, "attention_bias": True},
    "Cohere2ForCausalLM": {"attention_bias": True, "tie_word_embeddings": False},
    "Ernie4_5ForCausalLM": {"use_bias": True, "tie_word_embeddings": False, "head_dim": 24},
    "Ernie4_5_MoeForCausalLM": {"moe_num_shared_experts": 0, "moe_layer_start_index": 2},
    "GlmForCausalLM": {"attention_bias": False, "head_dim": 24},
    "Glm4ForCausalLM": {"attention_bias": False, "tie_word_embeddings": True},
    "GraniteForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "GraniteMoeForCausalLM": {"attention_bias": True, "tie_word_embeddings": True},
    "Lfm2ForCausalLM": {
        "conv_bias": True, "conv_L_cache": 4, "full_attn_idxs": [2], "block_multiple_of": 8,
    },
    "NanoChatForCausalLM": {"attention_bias": True, "tie_word_embeddings": True},
    "OlmoForCausalLM": {"attention_bias": True, "tie_word_embeddings": True},
    "Olmo2ForCausalLM": {"attention_bias": True, "tie_word_embeddings": True},
    "Olmo3ForCausalLM": {"attention_bias": True, "sliding_window": 24},
    "OlmoeForCausalLM": {"attention_bias": True, "num_key_value_heads": 4},
    "Phi3ForCausalLM": {"sliding_window": 24, "tie_word_embeddings": True},
    "DeepseekV2ForCausalLM": {"q_lora_rank": None, "first_k_dense_replace": 1},
    "DeepseekV3ForCausalLM": {"attention_bias": True, "n_shared_experts": 2},
    "GPT2LMHeadModel": {"n_inner": 100},
    "Gemma2ForCausalLM": {"attention_bias": True, "head_dim": 32, "num_key_value_heads": 1},
    "Gemma3ForCausalLM": {"tie_word_embeddings": False, "sliding_window": 24},
    "Gemma4ForCausalLM": {
        "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": True,
        "attention_bias": True,
        "num_global_key_value_heads": 1, "global_head_dim": 24, "enable_moe_block": True,
        "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48,
    },
    "GptOssForCausalLM": {"attention_bias": False, "num_experts_per_tok": 3},
    "LlamaForCausalLM": {
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 24
    },
    "MistralForCausalLM": {"sliding_window": None, "head_dim": 24},
    "MixtralForCausalLM": {"sliding_window": 24, "num_experts_per_tok": 1},
    "Qwen2ForCausalLM": {
        "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "Qwen2MoeForCausalLM": {
        "qkv_bias": False, "mlp_only_layers": [1], "tie_word_embeddings": True
    },
    "Qwen3ForCausalLM": {"attention_bias": True, "head_dim": 24},
    "SmolLM3ForCausalLM": {
        "attention_bias": True, "mlp_bias": True, "use_sliding_window": True, "sliding_window": 24,
    },
    "Qwen3MoeForCausalLM": {"mlp_only_layers": [1], "attention_bias": True, "head_dim": 24},
    "Qwen3NextForCausalLM": {"decoder_sparse_step": 2, "linear_num_value_heads": 4},
    "Qwen3_5ForCausalLM": {"tie_word_embeddings": True, "linear_conv_kernel_dim": 3},
    "Qwen3_5MoeForCausalLM": {"num_experts_per_tok": 3, "linear_num_value_heads": 4},
}  # fmt: skip

_TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 256,
    "moe_intermediate_size": 48, "num_experts_per_tok": 2, "sliding_window": 32,
}  # fmt: skip
_OWN_TINY: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {
        "kv_lora_rank": 32, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 1, "head_dim": 8,
        "num_key_value_heads": 4,
    },
    "DeepseekV3ForCausalLM": {
        "kv_lora_rank": 32, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "head_dim": 8,
        "first_k_dense_replace": 2, "num_key_value_heads": 4,
    },
    "Ernie4_5_MoeForCausalLM": {"moe_num_experts": 8, "moe_k": 2},
    "GPT2LMHeadModel": {
        "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 320, "n_positions": 256
    },
    "Gemma4ForCausalLM": {
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 320,
        "global_head_dim": 32,
    },
    "GptOssForCausalLM": {"num_local_experts": 8},
    "GraniteMoeForCausalLM": {"num_local_experts": 8},
    "OlmoeForCausalLM": {"num_experts": 8},
    "MixtralForCausalLM": {"num_local_experts": 8, "sliding_window": None},
    "Qwen2MoeForCausalLM": {"num_experts": 8, "shared_expert_intermediate_size": 32},
    "Qwen3MoeForCausalLM": {"num_experts": 8},
    "Qwen3NextForCausalLM": {
        "num_experts": 8, "shared_expert_intermediate_size": 32, "linear_key_head_dim": 8,
        "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    },
    "Qwen3_5ForCausalLM": {
        "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
    },
    "Qwen3_5MoeForCausalLM": {
        "num_experts": 8, "shared_expert_intermediate_size": 32, "linear_key_head_dim": 8,
        "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    },
}  # fmt: skip


def released(word: str) -> tuple[Any, dict[str, object]]:
    """transformers' default configuration of an architecture, and its config.json."""
    name, values = CLASSES[word]
    return _made(word, name, values)


def tiny(word: str, *, flags: bool) -> tuple[Any, dict[str, object]]:
    """A small configuration, with every flag moved where flags is set."""
    name, values = CLASSES[word]
    own = _OWN_TINY.get(word, {})
    sizes = own if word == "GPT2LMHeadModel" else {**_TINY, **own}
    return _made(word, name, {**values, **sizes, **(FLAGS[word] if flags else {})})


def _made(word: str, name: str, values: dict[str, Any]) -> tuple[Any, dict[str, object]]:
    import transformers

    config = getattr(transformers, name)(**values)
    return config, {
        **json.loads(config.to_json_string(use_diff=False)),
        "architectures": [word],
    }


def parameters_in_transformers(word: str, config: Any) -> int:
    """Numbers of the model that transformers builds; without memory, on the device meta."""
    import torch
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, word)(config)
    stored = ("correction_bias", "layer_scalar")  # buffers that checkpoints hold
    buffers = (b for name, b in model.named_buffers() if name.endswith(stored))
    return sum(each.numel() for each in (*model.parameters(), *buffers))
