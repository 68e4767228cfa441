"""Architectures by the word that a checkpoint uses for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from cutaway.core.errors import UnsupportedModelError

# the checkpoint's word (config.json "architectures"): module and class in this folder
ARCHITECTURES: Mapping[str, str] = {
    "Gemma2ForCausalLM": "gemma2:Gemma2",
    "Gemma3ForCausalLM": "gemma3:Gemma3",
    "DeepseekV2ForCausalLM": "deepseek_v2:DeepseekV2",
    "DeepseekV3ForCausalLM": "deepseek_v3:DeepseekV3",
    "Gemma3ForConditionalGeneration": "gemma3:Gemma3",  # see nested.py
    "Gemma4ForCausalLM": "gemma4:Gemma4",
    "Gemma4ForConditionalGeneration": "gemma4:Gemma4",
    "GPT2LMHeadModel": "gpt2:GPT2",
    "GptOssForCausalLM": "gpt_oss:GptOss",
    "LlamaForCausalLM": "llama:Llama",
    "MistralForCausalLM": "mistral:Mistral",
    "Mistral3ForConditionalGeneration": "mistral:Mistral",
    "MixtralForCausalLM": "mixtral:Mixtral",
    "Qwen2ForCausalLM": "qwen2:Qwen2",
    "Qwen3ForCausalLM": "qwen3:Qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe:Qwen3Moe",
    "Qwen3NextForCausalLM": "qwen3_next:Qwen3Next",
    "Qwen3_5ForCausalLM": "qwen3_5:Qwen35",
    "Qwen3_5ForConditionalGeneration": "qwen3_5:Qwen35",
    "Qwen3_5MoeForCausalLM": "qwen3_5:Qwen35",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5:Qwen35",
}

# general.architecture of a GGUF file
GGUF_ARCHITECTURES: Mapping[str, str] = {
    "deepseek2": "deepseek2:Deepseek2",
    "gemma2": "gemma2:Gemma2",
    "gemma3": "gemma3:Gemma3",
    "gpt-oss": "gpt_oss:GptOss",
    "gpt2": "gpt2:GPT2",
    "llama": "llama:Llama",
    "llama with experts": "mixtral:Mixtral",  # see gguf_word
    "qwen2": "qwen2:Qwen2",
    "qwen3": "qwen3:Qwen3",
    "qwen3moe": "qwen3_moe:Qwen3Moe",
}


def gguf_word(word: str, *, has_experts: bool) -> str:
    """The entry of a file's word: some words stand for a model with experts and for one without."""
    with_experts = f"{word} with experts"
    return with_experts if has_experts and with_experts in GGUF_ARCHITECTURES else word


def architecture_class(word: str, table: Mapping[str, str], *, file: str) -> type:
    """The class that reads such a checkpoint.

    Raises: UnsupportedModelError listing the known words, before any weight is read.
    """
    entry = table.get(word)
    if entry is None:
        raise UnsupportedModelError(
            f"{file}: architecture {word!r} is not known; known are {', '.join(sorted(table))}."
        )
    module, name = entry.split(":")
    return getattr(importlib.import_module(f"cutaway.models.{module}"), name)
