"""Tiny models of every architecture, saved by transformers: two per architecture that differ in
every flag. One line in CASES joins an architecture to the tests in tests/models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

COMMON: dict[str, Any] = {
    "vocab_size": 270,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
}

LATENT = {
    **{"num_key_value_heads": 4, "moe_intermediate_size": 32, "kv_lora_rank": 16},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10, "n_routed_experts": 8},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FEW = {"num_hidden_layers": 2, "pad_token_id": 0}  # what is padded has a row of the vocabulary
LONG = {
    **{"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.1, 3.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
}
STATE = {
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 10, "linear_num_key_heads": 2},
    "head_dim": 16,
}
DELTA = {
    **STATE,
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "shared_expert_intermediate_size": 24,
}

# case: transformers' class of the configuration, without "Config", and what differs from COMMON
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama-flags": (
        "Llama",
        {
            "num_key_value_heads": 1,
            "head_dim": 20,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0},
                **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "mistral-flags": (
        "Mistral",
        {
            **{"sliding_window": None, "num_key_value_heads": 4, "head_dim": 10},
            **{"hidden_act": "gelu", "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 2.0},
        },
    ),
    "qwen2": ("Qwen2", {"sliding_window": 8, "use_sliding_window": False}),
    "qwen2-flags": (
        "Qwen2",
        {
            **{"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            **{"tie_word_embeddings": True, "num_key_value_heads": 1, "hidden_act": "relu"},
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            **{"shared_expert_intermediate_size": 24, "norm_topk_prob": True},
        },
    ),
    "qwen2-moe-flags": (
        "Qwen2Moe",
        {
            **{"num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
            **{"shared_expert_intermediate_size": 40, "norm_topk_prob": False},
            **{"decoder_sparse_step": 2, "qkv_bias": False, "tie_word_embeddings": True},
            **{"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            **{"hidden_act": "gelu", "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-flags": (
        "Qwen3",
        {
            **{"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
            **{"head_dim": 8, "use_sliding_window": True, "sliding_window": 20},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma2": (
        "Gemma2",
        {"head_dim": 12, "sliding_window": 16, "query_pre_attn_scalar": 24, "hidden_size": 44},
    ),
    "gemma2-flags": (
        "Gemma2",
        {
            **{"attn_logit_softcapping": 0.7, "final_logit_softcapping": None},
            **{"head_dim": 16, "num_key_value_heads": 4, "attention_bias": True},
            **{"hidden_activation": "gelu", "tie_word_embeddings": False},
            **{"sliding_window": 11, "rope_parameters": {"rope_theta": 5e4}},
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 16, "sliding_window": 12, "num_hidden_layers": 7, "num_key_value_heads": 1},
    ),
    "gemma3-flags": (
        "Gemma3Text",
        {
            **{"head_dim": 8, "sliding_window": 20, "query_pre_attn_scalar": 20},
            **{"attention_bias": True, "tie_word_embeddings": False},
            **{"final_logit_softcapping": 3.0, "hidden_activation": "gelu"},
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
                "full_attention": {"rope_type": "linear", "rope_theta": 2e5, "factor": 8.0},
            },
        },
    ),
    "gemma4": (
        "Gemma4Text",
        {
            **{"head_dim": 16, "global_head_dim": 24, "hidden_size_per_layer_input": 6},
            **{"vocab_size_per_layer_input": 270, "num_kv_shared_layers": 2},
            **{"use_double_wide_mlp": True, "intermediate_size": 40, "num_hidden_layers": 4},
            **{"sliding_window": 12, "final_logit_softcapping": 2.0},
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "gemma4-flags": (
        "Gemma4Text",
        {
            **{"head_dim": 8, "global_head_dim": 32, "hidden_size_per_layer_input": 0},
            **{"attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True},
            **{"num_key_value_heads": 4, "sliding_window": 20, "tie_word_embeddings": False},
            **{"enable_moe_block": True, "num_experts": 5, "top_k_experts": 3},
            **{"moe_intermediate_size": 20, "hidden_activation": "gelu"},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma4-all": (
        "Gemma4Text",
        {
            **{"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 10},
            **{"vocab_size_per_layer_input": 270, "sliding_window": 20, "num_hidden_layers": 3},
            **{"num_kv_shared_layers": 1, "attention_k_eq_v": True, "rms_norm_eps": 1e-3},
            **{"num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 4},
            **{"top_k_experts": 2, "moe_intermediate_size": 16},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("GPT2", {}),
    "gpt2-flags": (
        "GPT2",
        {
            **{"n_inner": 100, "activation_function": "relu", "tie_word_embeddings": False},
            **{"scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-3},
            "num_attention_heads": 3,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mixtral-flags": (
        "Mixtral",
        {
            **{"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 20},
            **{"head_dim": 16, "tie_word_embeddings": True, "hidden_act": "gelu"},
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 12},
    ),
    "qwen3-moe-flags": (
        "Qwen3Moe",
        {
            **{"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
            **{"norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [0]},
            **{"attention_bias": True, "use_sliding_window": True, "sliding_window": 24},
            **{"head_dim": 16, "num_hidden_layers": 4, "tie_word_embeddings": True},
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": None, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    ),
    "deepseek-v2-flags": (
        "DeepseekV2",
        {
            **LATENT,
            **{"q_lora_rank": 24, "num_experts_per_tok": 3, "n_shared_experts": 1},
            **{"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
            **{"attention_bias": True, "mlp_bias": True, "routed_scaling_factor": 2.0},
            "rope_parameters": {**YARN, "rope_theta": 1e4, "mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **LATENT,
            **{"q_lora_rank": 24, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
            **{"n_group": 4, "topk_group": 2},
            "rope_parameters": {**YARN, "rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-v3-flags": (
        "DeepseekV3",
        {
            **LATENT,
            **{"q_lora_rank": None, "num_experts_per_tok": 3, "first_k_dense_replace": 0},
            **{"n_group": 2, "topk_group": 1, "n_shared_experts": 2, "norm_topk_prob": False},
            **{"rope_interleave": False, "attention_bias": True, "tie_word_embeddings": True},
            "routed_scaling_factor": 1.5,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 12},
            "sliding_window": 16,
            "rope_parameters": {**YARN, "rope_theta": 1.5e5, "truncate": False},
        },
    ),
    "gpt-oss-flags": (
        "GptOss",
        {
            **{"num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 16},
            **{"sliding_window": 20, "attention_bias": False, "tie_word_embeddings": True},
            **{"swiglu_limit": 0.5, "swiglu_alpha": 1.1, "num_hidden_layers": 3},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "qwen3.5": ("Qwen3_5Text", {**STATE, "linear_num_value_heads": 4, "num_hidden_layers": 4}),
    "qwen3.5-flags": (
        "Qwen3_5MoeText",
        {
            **DELTA,
            **{"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3, "head_dim": 12},
            **{"tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
            },
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2, "attention_bias": True}),
    "smollm3-flags": (
        "SmolLM3",
        {
            **{"no_rope_layers": [0, 1, 1], "mlp_bias": True, "tie_word_embeddings": False},
            **{"use_sliding_window": True, "sliding_window": 16},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "nanochat": ("NanoChat", {**FEW, "num_key_value_heads": None}),
    "nanochat-flags": (
        "NanoChat",
        {
            **FEW,
            **{"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
            **{"final_logit_softcapping": None, "hidden_act": "gelu", "rms_norm_eps": 1e-3},
            **{"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
        },
    ),
    "arcee": ("Arcee", FEW),
    "arcee-flags": (
        "Arcee",
        {
            **FEW,
            **{"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
            **{"num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-3},
            **{"hidden_act": "silu", "rope_parameters": {**YARN, "rope_theta": 1e4}},
        },
    ),
    "olmo": ("Olmo", FEW),
    "olmo-flags": (
        "Olmo",
        {
            **FEW,
            **{"clip_qkv": 0.5, "attention_bias": True, "tie_word_embeddings": True},
            **{"num_key_value_heads": 1, "hidden_act": "gelu"},
        },
    ),
    "olmo2": ("Olmo2", FEW),
    "olmo3-flags": (
        "Olmo3",
        {
            **FEW,
            **{"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 4},
            **{"sliding_window": 16, "rms_norm_eps": 1e-3, "hidden_act": "gelu"},
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
                "full_attention": {**YARN, "rope_theta": 2e5},
            },
        },
    ),
    "olmoe": ("Olmoe", {**FEW, "num_experts": 4, "num_experts_per_tok": 2}),
    "olmoe-flags": (
        "Olmoe",
        {
            **FEW,
            **{"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": True},
            **{"clip_qkv": 0.5, "attention_bias": True, "num_key_value_heads": 4},
        },
    ),
    "phi3": (
        "Phi3",
        {
            **FEW,
            **{"sliding_window": 16, "hidden_size": 64, "rope_parameters": LONG},
            "original_max_position_embeddings": 256,
        },
    ),
    "phi3-flags": (
        "Phi3",
        {
            **FEW,
            **{"tie_word_embeddings": True, "num_key_value_heads": 4, "hidden_size": 64},
            **{"original_max_position_embeddings": 32, "rope_parameters": LONG},
        },
    ),
    "granite": (
        "Granite",
        {
            **FEW,
            **{"embedding_multiplier": 12.0, "attention_multiplier": 0.2},
            **{"residual_multiplier": 0.22, "logits_scaling": 0.5},
        },
    ),
    "granite-moe": (
        "GraniteMoe",
        {
            **FEW,
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True},
            **{"embedding_multiplier": 2.0, "attention_multiplier": 0.5, "logits_scaling": 0.25},
            **{"residual_multiplier": 0.5, "tie_word_embeddings": True},
        },
    ),
    "cohere": ("Cohere", {**FEW, "logit_scale": 0.5}),
    "cohere-flags": (
        "Cohere",
        {
            **FEW,
            **{"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
            **{"layer_norm_eps": 1e-3, "num_key_value_heads": 4, "logit_scale": 2.0},
        },
    ),
    "cohere2": (
        "Cohere2",
        {**FEW, "num_hidden_layers": 4, "sliding_window": 16, "logit_scale": 1.5},
    ),
    "glm": ("Glm", {**FEW, "head_dim": 12, "rope_parameters": {"rope_theta": 1e4}}),
    "glm4": ("Glm4", {**FEW, "head_dim": 16}),
    "glm4-flags": (
        "Glm4",
        {
            **FEW,
            **{"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True},
            **{"num_key_value_heads": 1, "rms_norm_eps": 1e-3},
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25},
            },
        },
    ),
    "ernie4.5": ("Ernie4_5", {**FEW, "head_dim": 16}),
    "ernie4.5-flags": (
        "Ernie4_5",
        {
            **FEW,
            **{"head_dim": 8, "use_bias": True, "tie_word_embeddings": False},
            **{"num_key_value_heads": 4, "rms_norm_eps": 1e-3},
        },
    ),
    "ernie4.5-moe": (
        "Ernie4_5_Moe",
        {
            **FEW,
            **{"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20},
            **{"moe_num_shared_experts": 1},
        },
    ),
    "lfm2": ("Lfm2", {**FEW, "num_hidden_layers": 3, "full_attn_idxs": [1]}),
    "lfm2-flags": (
        "Lfm2",
        {
            **FEW,
            **{"layer_types": ["full_attention", "conv"], "conv_bias": True, "conv_L_cache": 4},
            **{"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
            **{"norm_eps": 1e-3, "num_key_value_heads": 4},
        },
    ),
    "qwen3-next": ("Qwen3Next", {**DELTA, "linear_num_value_heads": 4, "num_hidden_layers": 4}),
    "qwen3-next-flags": (
        "Qwen3Next",
        {
            **DELTA,
            **{"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3, "norm_topk_prob": False},
            **{"decoder_sparse_step": 2, "mlp_only_layers": [0], "tie_word_embeddings": True},
            **{"head_dim": 12, "num_key_value_heads": 1},
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
            },
        },
    ),
}


def reference(case: str, **more: Any) -> Any:
    """The model as transformers makes it, with every parameter drawn away from its start.

    more: what differs from the case.
    """
    import transformers

    word, changes = CASES[case]
    config = getattr(transformers, f"{word}Config")(**{**COMMON, **changes, **more})
    config._attn_implementation = "eager"  # the one that knows soft caps and sinks
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        buffers = (
            b for n, b in model.named_buffers() if n.endswith(("correction_bias", "layer_scalar"))
        )
        for parameter in (*model.parameters(), *buffers):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if word == "GptOss" and _ignores_the_clamp(model, config):
        pytest.skip("transformers before 5.24 fixes the clamp of gpt-oss at 7, whatever is set")
    return model


def _ignores_the_clamp(model: Any, config: Any) -> bool:
    """Whether the gate of gpt-oss has another clamp than the configuration sets."""
    limit = model.model.layers[0].mlp.experts.limit
    return limit != getattr(config, "swiglu_limit", limit)


def save(model: Any, folder: Path) -> None:
    """Write a model as its users would find it, beside a tokenizer of bytes."""
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if "partial_rotary_factor" in (config.get("rope_parameters") or {}):
        # transformers 5.17 writes a default of its own beside it, and warns of nothing.
        config.pop("partial_rotary_factor", None)
        path.write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer()), encoding="utf-8")


def byte_level_tokenizer() -> dict[str, Any]:
    """A tokenizer.json of 256 byte tokens without merges, and two control tokens."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = [
        {"id": 256 + i, "content": word, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, word in enumerate(("<start>", "<end>"))
    ]
    return {
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "vocab": byte_alphabet(), "merges": []},
    }


def byte_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte, and the byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    alphabet = {byte: chr(byte) for byte in shown}
    alphabet |= {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    return {alphabet[byte]: byte for byte in range(256)}
