"""DeepSeek models from GGUF files: names by llama.cpp's own package, values as its converter's.

The converter stacks experts and takes the matrix behind the latent apart into two stacks, the
keys' one across; files from before that have it whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_models_gguf import add_tokenizer, word_id
from torch import Tensor

import architectures
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.estimate import estimate
from cutaway.core.step import Step
from cutaway.core.weight_types import weights_of_file
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.host import gguf_file as reader
from cutaway.models import deepseek2
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.reading import read_gguf
from cutaway.weights.find.find import find

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

# The format has no biases, and takes mscale for mscale_all_dim.
FLAGS = {
    **{"attention_bias": False, "mlp_bias": False, "first_k_dense_replace": 1},
    "rope_parameters": {
        **architectures.YARN, **{"rope_theta": 1e4, "mscale": 0.9, "mscale_all_dim": 0.9},
    },
}  # fmt: skip
CASES: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("deepseek-v2", {}, True),
    ("deepseek-v2-flags", FLAGS, True),
    ("deepseek-v2-flags", FLAGS, False),
    ("deepseek-v3", {}, True),
)


@pytest.mark.parametrize(("case", "changes", "is_absorbed"), CASES)
@torch.no_grad()
def test_a_gguf_file_gives_the_logits_of_transformers(
    case: str, changes: dict[str, Any], is_absorbed: bool, tmp_path: Path
) -> None:
    theirs = architectures.reference(case, **changes)
    path = tmp_path / f"{case}.gguf"
    write(theirs, path, is_absorbed=is_absorbed)
    token_ids = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = theirs(torch.tensor([token_ids])).logits[0]
    assert expected.std() > 0.05
    ours = load_model(find(str(path)), EngineConfig(dtype="float32", device="cpu"))
    logits = ours.transformer(Step.without_cache([token_ids]))
    assert (logits - expected).abs().max() < 1e-4
    file = reader.read(path)
    shape = read_gguf(file).shape
    told = estimate(shape, weights_of_file(file.tensors, shape), context=9)
    assert told.parameters_total == ours.facts.num_parameters


def write(model: Any, path: Path, *, is_absorbed: bool) -> None:
    """The model as llama.cpp's converter writes it, in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_attention(writer, config, is_absorbed=is_absorbed)
    add_experts(writer, config)
    add_tokenizer(writer, config.vocab_size)
    table = gguf.get_tensor_name_map(word_id("deepseek2"), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        for part, value in parts(name, tensor, config, is_absorbed=is_absorbed):
            stored = table.get_name(part, try_suffixes=(".weight", ".bias"))
            assert stored is not None, part
            writer.add_tensor(stored, value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_attention(writer: Any, config: Any, *, is_absorbed: bool) -> None:
    key_size = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    if is_absorbed:
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(key_size)
        writer.add_value_length_mla(config.v_head_dim)
    else:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(key_size)
        writer.add_value_length(config.v_head_dim)
    rope = config.rope_parameters
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_experts(writer: Any, config: Any) -> None:
    functions = gguf.ExpertGatingFuncType
    is_v3 = config.model_type == "deepseek_v3"
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob if is_v3 else False)
    writer.add_expert_gating_func(functions.SIGMOID if is_v3 else functions.SOFTMAX)
    if is_v3 or config.topk_method == "group_limited_greedy":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def parts(
    name: str, tensor: Tensor, config: Any, *, is_absorbed: bool
) -> Iterator[tuple[str, Tensor]]:
    """Tensors under the names that the converter looks up."""
    if name.endswith("e_score_correction_bias"):
        yield name.replace("_bias", ".bias"), tensor
    elif name.endswith("experts.gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        at = name.removesuffix("gate_up_proj")
        yield f"{at}gate_proj.weight", gate
        yield f"{at}up_proj.weight", up
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", tensor
    elif name.endswith("kv_b_proj.weight") and is_absorbed:
        sizes = (config.qk_nope_head_dim, config.v_head_dim)
        heads = tensor.view(config.num_attention_heads, sum(sizes), -1)
        keys, values = heads.split(sizes, dim=1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), values
    else:
        yield name, tensor


METADATA: dict[str, object] = {
    "vocab_size": 270,
    **{"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 48},
    **{"attention.head_count": 4, "attention.kv_lora_rank": 8, "attention.key_length": 12},
    **{"attention.value_length": 8, "rope.dimension_count": 4, "expert_count": 4},
    **{"expert_used_count": 2, "expert_feed_forward_length": 16},
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"expert_gating_func": 2}, UnsupportedModelError, "expert_gating_func is 2 and tensors"),
        ({"rope.dimension_count": 12}, ModelFormatError, "below the size of a key, 12"),
        ({"expert_group_count": 3}, ModelFormatError, "it must cut 4 experts into equal groups"),
        (
            {"expert_group_count": 2, "expert_weights_norm": True},
            UnsupportedModelError,
            "expert_weights_norm is true; a DeepSeek V2 model has false",
        ),
    ],
)
def test_what_no_such_model_has_is_refused_by_name(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as fault:
        deepseek2.from_gguf(Fields({**METADATA, **change}, file="x.gguf"), {}, {})
    assert message in str(fault.value)
