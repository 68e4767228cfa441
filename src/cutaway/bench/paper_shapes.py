"""Shapes of released models that the paper table is computed from: the fields that sizes need.

Values are those of the released config.json files; transformers 5.24 has the same as the defaults
of its configuration classes for Mistral, Mixtral, DeepSeek-V3, gpt-oss and Qwen3-Next.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.core.shapes import ModelShape
from cutaway.models.parts.reading import shape_of

_LLAMA_3_8B: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
_MISTRAL_7B: Mapping[str, object] = {
    **_LLAMA_3_8B,
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 32000,
    "sliding_window": 4096,
}
_MIXTRAL: Mapping[str, object] = {
    **_LLAMA_3_8B,
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_DEEPSEEK_V2: Mapping[str, object] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "vocab_size": 102400,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_DEEPSEEK_V3: Mapping[str, object] = {
    **_DEEPSEEK_V2,
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}
# arXiv 2401.02954, table 2
_DEEPSEEK_67B: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 95,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 102400,
}
_GPT_OSS_120B: Mapping[str, object] = {
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
}
_QWEN3_NEXT: Mapping[str, object] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151936,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}

CONFIGS: Mapping[str, Mapping[str, object]] = {
    "Llama-3-8B": _LLAMA_3_8B,
    "Mistral-7B": _MISTRAL_7B,
    "Mixtral-8x7B": _MIXTRAL,
    "DeepSeek-V2": _DEEPSEEK_V2,
    "DeepSeek-V3": _DEEPSEEK_V3,
    "DeepSeek-67B": _DEEPSEEK_67B,
    "gpt-oss-120b": _GPT_OSS_120B,
    "Qwen3-Next-80B-A3B": _QWEN3_NEXT,
}


def shape(name: str, **changes: object) -> ModelShape:
    """A shape of CONFIGS with some fields changed."""
    return shape_of({**CONFIGS[name], **changes}, file=name)
