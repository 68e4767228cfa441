"""Tiny models for tests: random Llama configurations in the Hugging Face layout."""

from __future__ import annotations

from typing import Any

import torch

from cutaway.blocks.transformer import Transformer
from cutaway.models import llama as llama_files
from cutaway.models import mixtral as mixtral_files
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.grouped_decoder import GroupedDecoder

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def config(**changes: Any) -> dict[str, Any]:
    """The base configuration with some values changed."""
    return {**BASE, **changes}


def llama(values: dict[str, Any]) -> GroupedDecoder:
    """The architecture of a configuration."""
    return llama_files.from_hf(Fields(values, file="config.json"))


def fill(
    model: Transformer,
    architecture: GroupedDecoder,
    state: dict[str, torch.Tensor],
    dtype: torch.dtype,
) -> Transformer:
    """Copy a Hugging Face state dict into the model by the architecture's own table."""
    model.to(dtype)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, target in architecture.targets("hf").items():
            parameters[target.parameter].copy_(state[name])
    return model


def random_model(
    values: dict[str, Any] | None = None, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[GroupedDecoder, Transformer]:
    """A model whose weights are large enough that its answers vary; Mixtral's by its type."""
    values = values or config()
    files = mixtral_files if values["model_type"] == "mixtral" else llama_files
    architecture = files.from_hf(Fields(values, file="config.json"))
    model = architecture.build().to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                values_ = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(values_ * parameter.shape[-1] ** -0.5 * 1.5)
    return architecture, model
