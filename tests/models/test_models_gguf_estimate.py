"""Estimates from GGUF headers, on files that llama.cpp's own package writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_models_gguf
import test_models_gguf_experts

import architectures
from cutaway.cli.session.shape_at import shape_at
from cutaway.core.estimate import estimate
from cutaway.core.work import cache_bytes_per_token
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.weights.find.find import find

pytest.importorskip("gguf")
pytest.importorskip("transformers")

CASES = {word: (case, word, changes) for word, (case, changes) in test_models_gguf.CASES.items()}
CASES |= {case: (case, word, changes) for case, word, changes in test_models_gguf_experts.CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_header_gives_the_sizes_of_the_loaded_model(name: str, tmp_path: Path) -> None:
    case, word, changes = CASES[name]
    path = tmp_path / f"{name}.gguf"
    writes = test_models_gguf if name in test_models_gguf.CASES else test_models_gguf_experts
    writes.write(architectures.reference(case, **changes), word, path)
    shape, weights, _ = shape_at(str(path))
    assert weights is not None
    made = estimate(shape, weights, context=100, kv_dtype="float32")
    assert made.parameters_total == weights.values
    assert made.weight_bytes == 4 * weights.values  # these files keep float32
    loaded = load_model(find(str(path)), EngineConfig(dtype="float32", device="cpu"))
    assert made.parameters_total == loaded.facts.num_parameters
    assert made.kv_bytes_per_token == cache_bytes_per_token(loaded.facts, "float32")
    kept = [spec for spec in loaded.transformer.cache_specs if not spec.is_state]
    for ours, theirs in zip(shape.cache_specs, kept, strict=True):
        assert ours.extent == theirs.extent
        assert ours.bytes_per_token("int8") == theirs.bytes_per_token("int8")
    used, every = weights.share
    assert weights.read(every) == weights.total - weights.lookup
    saved = weights.read(every) - weights.read(1)
    assert saved * every == weights.experts * (every - used)


@pytest.mark.parametrize(("word", "is_absorbed"), [("V2", False), ("V3", True)])
def test_latent_attention_is_read_in_both_forms_of_the_header(word, is_absorbed, tmp_path):
    """Files for absorbed attention have key_length of the row, and _mla names for the heads'."""
    import gguf
    import numpy

    from cutaway.host.gguf_file import read
    from cutaway.models.parts.reading import read_gguf, shape_of
    from published_shapes import tiny

    values = tiny(f"Deepseek{word}ForCausalLM", flags=False)[1]
    number: dict[str, int] = {k: v for k, v in values.items() if isinstance(v, int)}
    head = number["qk_nope_head_dim"] + number["qk_rope_head_dim"]
    row = number["kv_lora_rank"] + number["qk_rope_head_dim"]
    lengths = {"key_length": head, "value_length": number["v_head_dim"]}
    if is_absorbed:
        lengths = {f"{name}_mla": size for name, size in lengths.items()}
        lengths |= {"key_length": row, "value_length": number["kv_lora_rank"]}
    fields = {
        "block_count": number["num_hidden_layers"],
        "context_length": number["max_position_embeddings"],
        "embedding_length": number["hidden_size"],
        "feed_forward_length": number["intermediate_size"],
        "attention.head_count": number["num_attention_heads"],
        "attention.head_count_kv": 1 if is_absorbed else number["num_attention_heads"],
        "attention.q_lora_rank": number["q_lora_rank"],
        "attention.kv_lora_rank": number["kv_lora_rank"],
        "rope.dimension_count": number["qk_rope_head_dim"],
        "leading_dense_block_count": number["first_k_dense_replace"],
        "expert_count": number["n_routed_experts"],
        "expert_used_count": number["num_experts_per_tok"],
        "expert_shared_count": number["n_shared_experts"],
        "expert_feed_forward_length": number["moe_intermediate_size"],
        **{f"attention.{name}": size for name, size in lengths.items()},
    }
    if word == "V3":
        fields["expert_gating_func"] = 2  # sigmoid
        fields |= {"expert_group_count": number["n_group"]}
        fields |= {"expert_group_used_count": number["topk_group"]}
    path = tmp_path / "latent.gguf"
    writer = gguf.GGUFWriter(str(path), "deepseek2")
    for name, value in fields.items():
        writer.add_uint32(f"deepseek2.{name}", value)
    for name in ("token_embd.weight", "output.weight"):
        shape = (number["vocab_size"], number["hidden_size"])
        writer.add_tensor(name, numpy.zeros(shape, numpy.float32))
    for layer in range(number["num_hidden_layers"]):  # a file has more tensors than layers
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", numpy.ones(1, numpy.float32))
    if word == "V3":
        writer.add_tensor("blk.2.exp_probs_b.bias", numpy.zeros(8, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_gguf(read(path)).shape == shape_of(values)
