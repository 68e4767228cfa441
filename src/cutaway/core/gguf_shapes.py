"""Reads the metadata of a GGUF file into the shape of its model, by way of config.json's words."""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.core.config_shapes import shape_of
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.gguf import GgufFile
from cutaway.core.shapes import ModelShape

# general.architecture: the checkpoint's word
_WORDS: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt-oss": "GptOssForCausalLM",
    "deepseek2": "DeepseekV2ForCausalLM",
}

# keys after the prefix of the architecture: fields of config.json
_FIELDS: Mapping[str, str] = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "leading_dense_block_count": "first_k_dense_replace",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_shared_count": "n_shared_experts",
}
_GPT2_FIELDS: Mapping[str, str] = {
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "context_length": "n_positions",
}


def shape_of_gguf(file: GgufFile) -> ModelShape:
    """The shape of a file's model.

    Raises: UnsupportedModelError for an unknown architecture, ModelFormatError for a bad field.
    """
    word = file.text("general.architecture")
    if word not in _WORDS:
        known = ", ".join(sorted(_WORDS))
        raise UnsupportedModelError(
            f"{file.file}: architecture {word!r} has no estimate; known are {known}."
        )
    names = _GPT2_FIELDS if word == "gpt2" else _FIELDS
    config: dict[str, object] = {
        field: file.metadata[f"{word}.{key}"]
        for key, field in names.items()
        if f"{word}.{key}" in file.metadata
    }
    config["architectures"] = [_WORDS[word]]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    table = file.tensors.get("token_embd.weight")
    config["vocab_size"] = table.shape[0] if table else None
    _add_of_word(config, word, file)
    return shape_of(config, file=file.file)


def _add_of_word(config: dict[str, object], word: str, file: GgufFile) -> None:
    """What only one architecture says, or says otherwise than config.json."""
    num_experts = file.metadata.get(f"{word}.expert_count")
    match word:
        case "llama":
            config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
            config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
            if num_experts:
                config["architectures"] = ["MixtralForCausalLM"]
                config["num_local_experts"] = num_experts
            elif "sliding_window" in config:
                config["architectures"] = ["MistralForCausalLM"]
        case "qwen3moe" | "gpt-oss":
            config["num_experts" if word == "qwen3moe" else "num_local_experts"] = num_experts
            if word == "gpt-oss":
                config["intermediate_size"] = config.get("moe_intermediate_size")
        case "deepseek2":
            config["n_routed_experts"] = num_experts
            if any(name.endswith("exp_probs_b.bias") for name in file.tensors):
                config["architectures"] = ["DeepseekV3ForCausalLM"]
            _add_latent_sizes(config, file)
        case _:
            pass


def _add_latent_sizes(config: dict[str, object], file: GgufFile) -> None:
    """Files for absorbed attention keep the sizes of expanded heads under names of their own."""
    sizes = [
        file.integer(f"deepseek2.attention.{name}_mla", file.integer(f"deepseek2.attention.{name}"))
        for name in ("key_length", "value_length")
    ]
    config["qk_nope_head_dim"] = sizes[0] - file.integer("deepseek2.rope.dimension_count")
    config["v_head_dim"] = sizes[1]
