"""Architectures by the word that a checkpoint uses for them; free of torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote

# the checkpoint's word (config.json "architectures"): the file in this folder that reads it
ARCHITECTURES: Mapping[str, str] = {
    "ArceeForCausalLM": "arcee",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Gemma3ForConditionalGeneration": "gemma3",  # see nested.py
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "GPT2LMHeadModel": "gpt2",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granite",
    "Lfm2ForCausalLM": "lfm2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Mistral3ForConditionalGeneration": "mistral",
    "MixtralForCausalLM": "mixtral",
    "NanoChatForCausalLM": "nanochat",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "OlmoeForCausalLM": "olmoe",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
    "SmolLM3ForCausalLM": "smollm3",
}

# general.architecture of a GGUF file
GGUF_ARCHITECTURES: Mapping[str, str] = {
    "arcee": "arcee",
    "chatglm": "glm",
    "cohere2": "cohere",
    "command-r": "cohere",
    "deepseek2": "deepseek2",
    "ernie4_5": "ernie4_5",
    "ernie4_5-moe": "ernie4_5_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "glm4": "glm4",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "granite": "granite",
    "granitemoe": "granite",
    "lfm2": "lfm2",
    "llama": "llama",
    "llama with experts": "mixtral",  # see gguf_word
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
}


def gguf_word(word: str, *, has_experts: bool) -> str:
    """The entry of a file's word: some words stand for a model with experts and for one without."""
    with_experts = f"{word} with experts"
    return with_experts if has_experts and with_experts in GGUF_ARCHITECTURES else word


def architecture_file(word: str, table: Mapping[str, str], *, file: str) -> ModuleType:
    """The module whose from_hf or from_gguf reads such a checkpoint.

    Raises: UnsupportedModelError listing the known words, before any weight is read.
    """
    if word not in table:
        raise UnsupportedModelError(
            f"{file}: architecture {quote(word)} is not known; known are "
            f"{', '.join(sorted(table))}."
        )
    return importlib.import_module(f"cutaway.models.{table[word]}")
