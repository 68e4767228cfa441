"""Reads a config.json into the shape of its model; absent fields mean what transformers takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from cutaway.core.config_reader import Reader
from cutaway.core.configs import deepseek, gemma, plain, qwen
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.shapes import ModelShape


def shape_of(config: Mapping[str, object], *, file: str = "config.json") -> ModelShape:
    """Read a config.json that was parsed. Of a model that also sees, the text part is read.

    Raises: UnsupportedModelError for an unknown architecture, ModelFormatError for a bad field.
    """
    words = config.get("architectures")
    word = str(cast("list[object]", words)[0]) if isinstance(words, list) and words else "none"
    reader = READERS.get(word)
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise UnsupportedModelError(
            f"{file}: architecture {word!r} has no estimate; known are {known}."
        )
    text = config.get("text_config")
    if isinstance(text, Mapping):
        tied = config.get("tie_word_embeddings")  # the head is the whole model's
        config = dict(cast("Mapping[str, object]", text))
        config |= {} if tied is None else {"tie_word_embeddings": tied}
    return reader(Reader(config, file, word))


READERS: Mapping[str, Callable[[Reader], ModelShape]] = {
    "DeepseekV2ForCausalLM": deepseek.deepseek,
    "DeepseekV3ForCausalLM": deepseek.deepseek,
    "GPT2LMHeadModel": plain.gpt2,
    "Gemma2ForCausalLM": gemma.gemma2,
    "Gemma3ForCausalLM": gemma.gemma3,
    "Gemma3ForConditionalGeneration": gemma.gemma3,
    "Gemma4ForCausalLM": gemma.gemma4,
    "Gemma4ForConditionalGeneration": gemma.gemma4,
    "GptOssForCausalLM": plain.gpt_oss,
    "LlamaForCausalLM": plain.llama,
    "Mistral3ForConditionalGeneration": plain.mistral,
    "MistralForCausalLM": plain.mistral,
    "MixtralForCausalLM": plain.mixtral,
    "Qwen2ForCausalLM": qwen.qwen2,
    "Qwen3ForCausalLM": qwen.qwen3,
    "Qwen3MoeForCausalLM": qwen.qwen3_moe,
    "Qwen3NextForCausalLM": qwen.qwen3_next,
    "Qwen3_5ForCausalLM": qwen.qwen3_5,
    "Qwen3_5ForConditionalGeneration": qwen.qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen.qwen3_5_moe,
    "Qwen3_5MoeForConditionalGeneration": qwen.qwen3_5_moe,
}
