"""Every architecture that llama.cpp has, from GGUF files made by its own package.

Names of tensors come from that package's table and not from ours; what its converter does to the
values (interleaved pairs, norms as 1 + w, matrices turned) is done here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import architectures
from cutaway.core.errors import ModelError
from cutaway.core.step import Step
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.weights.find.find import find

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

# GGUF's word, the case, and what the file cannot say and so fixes
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("arcee", {}),
    "llama": ("llama", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"num_key_value_heads": 1}),
    "gemma2": ("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 16}),
    "gpt2": ("gpt2", {}),
    "smollm3": (
        "smollm3",
        {"num_hidden_layers": 4, "no_rope_layer_interval": 4, "attention_bias": False},
    ),
    "olmo": ("olmo", {"clip_qkv": 0.5}),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3-flags", {}),
    "granite": ("granite", {"attention_bias": True}),
    "command-r": ("cohere-flags", {"tie_word_embeddings": True}),
    "cohere2": ("cohere2", {}),
    "chatglm": ("glm", {}),
    "glm4": ("glm4-flags", {"attention_bias": True}),
    "ernie4_5": ("ernie4.5", {}),
    "lfm2": ("lfm2", {}),
}
PERMUTED = ("arcee", "llama", "smollm3", "granite", "granitemoe", "olmo")


@pytest.mark.parametrize("word", CASES)
@torch.no_grad()
def test_g06_a_gguf_file_gives_the_logits_of_transformers(word: str, tmp_path: Path) -> None:
    case, changes = CASES[word]
    theirs = architectures.reference(case, **changes)
    path = tmp_path / f"{word}.gguf"
    write(theirs, word, path)
    ours = load_model(find(str(path)), EngineConfig(dtype="float32", device="cpu"))
    generator = torch.Generator().manual_seed(2)
    token_ids = torch.randint(0, 256, (90,), generator=generator).tolist()
    logits = ours.transformer(Step.without_cache([token_ids]))
    expected = theirs(torch.tensor([token_ids])).logits[0]
    assert expected.std() > 0.05
    assert (logits - expected).abs().max() < 1e-4


def write(model: Any, word: str, path: Path) -> None:
    """The model as llama.cpp's converter writes it, in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, word)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if word == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        inner = config.intermediate_size
        if word == "lfm2":  # two thirds, rounded up as the model does
            inner = model.model.layers[0].feed_forward.w1.out_features
        writer.add_feed_forward_length(inner)
        add_norms_and_heads(writer, word, config)
        add_positions(writer, config)
    for name, add in WRITTEN.get(word, {}).items():
        if getattr(config, name, None) is not None:
            getattr(writer, add)(getattr(config, name))
    add_tokenizer(writer, config.vocab_size)
    table = gguf.get_tensor_name_map(word_id(word), config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        stored = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, changed(name, tensor, word, config).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Fields of a configuration, and what of the package writes them.
_WINDOW, _LOGITS = {"sliding_window": "add_sliding_window"}, {"logit_scale": "add_logit_scale"}
_FACTORS = {
    "attention_multiplier": "add_attention_scale",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "logits_scaling": "add_logit_scale",
}
WRITTEN: dict[str, dict[str, str]] = {
    "ernie4_5-moe": {
        "moe_layer_start_index": "add_leading_dense_block_count",
        "moe_layer_interval": "add_interleave_moe_layer_step",
        "moe_num_shared_experts": "add_expert_shared_count",
    },
    "gemma2": {
        **_WINDOW,
        "attn_logit_softcapping": "add_attn_logit_softcapping",
        "final_logit_softcapping": "add_final_logit_softcapping",
    },
    "gemma3": _WINDOW,
    "phi3": _WINDOW,
    "granite": _FACTORS,
    "granitemoe": _FACTORS,
    "command-r": _LOGITS,
    "cohere2": {**_WINDOW, **_LOGITS},
    "lfm2": {"conv_L_cache": "add_shortconv_l_cache"},
    "olmo": {"clip_qkv": "add_clamp_kqv"},
}


def add_norms_and_heads(writer: Any, word: str, config: Any) -> None:
    groups = config.num_key_value_heads
    if word == "lfm2":
        groups = [0 if kind == "conv" else groups for kind in config.layer_types]
    writer.add_head_count_kv(groups)
    if word in ("command-r", "cohere2", "olmo"):
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", 1e-5))
    else:
        writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def add_positions(writer: Any, config: Any) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    share = rope.get("partial_rotary_factor")
    if share is not None:
        size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        writer.add_rope_dimension_count(int(size * share))
    if rope.get("rope_type") == "longrope":
        trained = rope["original_max_position_embeddings"]
        stretch = config.max_position_embeddings / trained
        writer.add_rope_scaling_orig_ctx_len(trained)
        writer.add_rope_scaling_attn_factors((1 + math.log(stretch) / math.log(trained)) ** 0.5)
        for kind in ("short", "long"):
            factors = torch.tensor(rope[f"{kind}_factor"], dtype=torch.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors.numpy())


def word_id(word: str) -> int:
    return next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == word)


def changed(name: str, tensor: torch.Tensor, word: str, config: Any) -> torch.Tensor:
    """What convert_hf_to_gguf.py does to a tensor's values."""
    if word.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if word == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return tensor.T
    heads = {"q_proj": config.num_attention_heads}
    heads["k_proj"] = getattr(config, "num_key_value_heads", 0)
    count = next((n for part, n in heads.items() if f".{part}." in name), None)
    if word == "lfm2" and ".conv.conv." in name:
        return tensor.squeeze(1)
    if word in PERMUTED and count:
        halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def add_tokenizer(writer: Any, vocab_size: int) -> None:
    """A vocabulary of bytes, two control tokens, a pair to merge, and rows that nothing uses."""
    kinds = gguf.TokenType
    tokens = list(architectures.byte_alphabet())
    types = [kinds.NORMAL] * len(tokens)
    tokens += ["<start>", "<end>", "th"]
    types += [kinds.CONTROL, kinds.CONTROL, kinds.NORMAL]
    types += [kinds.UNUSED] * (vocab_size - len(tokens))
    tokens += [f"<unused{number}>" for number in range(vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(257)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("foo", 'architecture "foo" is not known; known are '),
        ("llama", "llama.embedding_length: is missing; the architecture needs it."),
    ],
)
def test_g09_a_gguf_file_of_no_known_model_is_refused_by_its_metadata(
    word: str, message: str, tmp_path: Path
) -> None:
    """One of another architecture, and one with a vocabulary alone."""
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, word)
    add_tokenizer(writer, 270)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError) as fault:
        load_model(find(str(path)), EngineConfig(dtype="float32", device="cpu"))
    assert message in str(fault.value)
