"""Models with experts from GGUF files made by llama.cpp's own package.

Names of tensors come from that package's table and not from ours; what its converter does to the
values (experts stacked, gate and value apart, inputs last) is done here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_models_gguf import WRITTEN, add_tokenizer, changed, word_id
from torch import Tensor

import architectures
from cutaway.core.step import Step
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.weights.find.find import find

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

# case, GGUF's word, and what the file cannot say and so fixes
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mixtral", "llama", {}),
    ("qwen3-moe", "qwen3moe", {"norm_topk_prob": True}),
    ("gpt-oss", "gpt-oss", {"num_hidden_layers": 2}),
    ("qwen2-moe", "qwen2moe", {"norm_topk_prob": False, "num_hidden_layers": 2}),
    ("olmoe", "olmoe", {}),
    ("granite-moe", "granitemoe", {}),
    ("ernie4.5-moe", "ernie4_5-moe", {}),
)


@pytest.mark.parametrize(("case", "word", "changes"), CASES)
@torch.no_grad()
def test_a_gguf_file_with_experts_gives_the_logits_of_transformers(
    case: str, word: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    theirs = architectures.reference(case, **changes)
    path = tmp_path / f"{case}.gguf"
    write(theirs, word, path)
    token_ids = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = theirs(torch.tensor([token_ids])).logits[0]
    assert expected.std() > 0.05
    ours = load_model(find(str(path)), EngineConfig(dtype="float32", device="cpu"))
    logits = ours.transformer(Step.without_cache([token_ids]))
    assert (logits - expected).abs().max() < 1e-4


def write(model: Any, word: str, path: Path) -> None:
    """The model as llama.cpp's converter writes it, in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, word)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if word in ("qwen3moe", "qwen2moe", "ernie4_5-moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if word == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    for field, add in WRITTEN.get(word, {}).items():
        getattr(writer, add)(getattr(config, field))
    if word == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
        trained = config.rope_parameters["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(trained)
    add_tokenizer(writer, config.vocab_size)
    table = gguf.get_tensor_name_map(word_id(word), config.num_hidden_layers)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set[str]()
    for name, tensor in model.state_dict().items():
        for part, value in () if name in tied else parts(name, tensor, word):
            stored = table.get_name(part, try_suffixes=(".weight", ".bias"))
            assert stored is not None, part
            writer.add_tensor(stored, changed(part, value, word, config).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parts(name: str, tensor: Tensor, word: str) -> Iterator[tuple[str, Tensor]]:
    """Joined stacks as the converter takes them apart, and everything else as it is."""
    if word == "granitemoe":  # as files name them, and the package's table
        name = name.replace("block_sparse_moe.experts", "mlp.experts")
        name = name.replace("router.weight", "router.layer.weight")
    if word == "ernie4_5-moe" and "e_score_correction_bias" in name:
        at = name.partition(".mlp.")[0]
        yield f"{at}.mlp.moe_statics.e_score_correction.bias", tensor.squeeze()
        return
    if name.endswith("self_attn.sinks"):
        yield f"{name}.weight", tensor
        return
    if ".experts." not in name:
        yield name, tensor
        return
    is_bias = name.endswith("_bias")
    name = name.removesuffix("_bias")
    kind = "bias" if is_bias else "weight"
    if word == "gpt-oss" and not is_bias:
        tensor = tensor.transpose(1, 2)
    if name.endswith("down_proj"):
        yield f"{name}.{kind}", tensor
        return
    if word == "gpt-oss":
        gate, up = tensor[:, 0::2], tensor[:, 1::2]
    else:
        gate, up = tensor.chunk(2, dim=1)
    at = name.removesuffix("gate_up_proj")
    yield f"{at}gate_proj.{kind}", gate
    yield f"{at}up_proj.{kind}", up
