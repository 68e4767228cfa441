"""Estimates against published sizes, models that transformers builds, and worked examples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cutaway.core.devices import DEVICES
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.estimate import Estimate, estimate, roofline
from cutaway.core.layout import FULL, Window
from cutaway.core.shapes import Grouped, MatrixShape, seen_pairs, seen_tokens
from cutaway.core.weight_types import WEIGHT_TYPES, weights_in
from cutaway.models import ARCHITECTURES
from cutaway.models.parts.reading import shape_of
from house_tree import ROOT
from published_shapes import CLASSES, LLAMA_3_8B, parameters_in_transformers, released, tiny


def made(config: Any, *, context: int = 1, quant: str = "bfloat16", **more: Any) -> Estimate:
    shape = shape_of(config)
    return estimate(shape, weights_in(shape, quant), context=context, **more)


def test_every_reader_has_a_configuration_here():
    also_see = {word for word in ARCHITECTURES if word.endswith("ForConditionalGeneration")}
    assert set(ARCHITECTURES) - also_see == set(CLASSES)
    for word in also_see:  # the text part, under text_config
        text = word.replace("ForConditionalGeneration", "ForCausalLM")
        text = text.replace("Mistral3", "Mistral")  # whose text part has a word of its own
        values = tiny(text, flags=False)[1]
        whole = {"architectures": [word], "text_config": values}
        assert made(whole) == made({**values, "architectures": [text]})


# Totals: the model cards and reports. gpt-oss (arXiv 2508.10925, table 1) counts 5.13B active
# without the embedding, 5.71B with it; DeepSeek-V3 (arXiv 2412.19437) is published as 37B.
@pytest.mark.parametrize(
    ("word", "total", "active", "places"),
    [
        ("MixtralForCausalLM", 46.7, 12.9, 1),
        ("DeepseekV3ForCausalLM", 671.0, 37.6, 1),
        ("GptOssForCausalLM", 116.83, 5.71, 2),
        ("MistralForCausalLM", 7.24, 7.24, 2),
        ("LlamaForCausalLM", 6.74, 6.74, 2),
        ("Gemma2ForCausalLM", 2.61, 2.61, 2),
        ("GPT2LMHeadModel", 0.124, 0.124, 3),
        ("Qwen3NextForCausalLM", 79.7, 3.9, 1),
    ],
)
def test_published_parameter_counts(word, total, active, places):
    found = made(released(word)[1])
    assert round(found.parameters_total / 1e9, places) == total
    assert round(found.parameters_active / 1e9, places) == active


def test_llama_3_8b_as_published():
    found = made(LLAMA_3_8B, context=8192)
    assert found.parameters_total == 8_030_261_248
    assert found.kv_bytes_per_token == 131_072
    assert found.kv_bytes_at_context == found.kv_bytes_in_pages == 2**30
    assert found.flops_training_per_token == 6 * 8_030_261_248


def test_deepseek_v3_keeps_70272_bytes_a_token():
    found = made(released("DeepseekV3ForCausalLM")[1], context=10, batch=3)
    assert found.kv_bytes_per_token == 61 * (512 + 64) * 2 == 70_272
    assert found.kv_bytes_at_context == 30 * 70_272


@pytest.mark.parametrize("word", CLASSES)
def test_parameters_equal_those_of_transformers(word):
    for config, values in (released(word), tiny(word, flags=False), tiny(word, flags=True)):
        assert made(values).parameters_total == parameters_in_transformers(word, config)


def test_gpt_oss_in_mxfp4_is_as_large_as_its_checkpoint():
    """60.8 GiB: arXiv 2508.10925, table 1."""
    shape = shape_of(released("GptOssForCausalLM")[1])
    assert round(weights_in(shape, "MXFP4").total / 2**30, 1) == 60.8


def test_windows_hold_less_than_per_token_times_context():
    """Gemma 2 2B: half of 26 layers see 4,096 tokens; 2 x 4 x 256 x 2 bytes a token and layer."""
    values = released("Gemma2ForCausalLM")[1]
    inside, beyond = made(values, context=4096), made(values, context=32_768)
    assert inside.kv_bytes_at_context == 4096 * inside.kv_bytes_per_token
    assert beyond.kv_bytes_at_context == 4096 * 13 * (32_768 + 4096)
    assert beyond.kv_bytes_at_context < 32_768 * beyond.kv_bytes_per_token
    assert made(values, context=4100).kv_bytes_in_pages == 4096 * 13 * (4112 + 4112)


@pytest.mark.parametrize("extent", [FULL, Window(1), Window(7), Window(5, sinks=3)])
def test_pairs_are_the_sum_of_what_each_token_sees(extent):
    def sees(query: int, key: int) -> bool:
        near = not isinstance(extent, Window) or key > query - extent.width
        return key <= query and (near or key < getattr(extent, "sinks", 0))

    for context in range(1, 20):
        assert seen_tokens(extent, context) == sum(sees(context - 1, k) for k in range(context))
        pairs = sum(sees(q, k) for q in range(context) for k in range(context))
        assert seen_pairs(extent, context) == pairs


@pytest.mark.parametrize(
    ("quant", "num_bytes"),
    [  # a matrix of 2 rows with 512 columns, and a vector of 512
        ("float32", 4 * 1536), ("bfloat16", 2 * 1536), ("int8", 32 * 34 + 1024),
        ("fp8", 1024 + 2 * 4 + 1024), ("int4", 32 * 20 + 1024), ("int4-sym", 32 * 18 + 1024),
        ("gptq-g128", 8 * 67 + 1024), ("Q8_0", 32 * 34 + 2048),
        ("Q4_0", 32 * 18 + 2048), ("Q4_1", 32 * 20 + 2048), ("Q4_K", 4 * 144 + 2048),
    ],
)  # fmt: skip
def test_bytes_of_a_type(quant, num_bytes):
    from cutaway.core.weight_types import _bytes_of

    vectors = 512 * (4 if WEIGHT_TYPES[quant].vectors == "float32" else 2)
    assert _bytes_of(MatrixShape(2, 512), quant, WEIGHT_TYPES[quant]) + vectors == num_bytes


def test_rows_that_no_block_fits_are_kept_wider():
    """SmolLM2's rows of 576 are no multiple of 256: Q4_K takes Q8_0 for them."""
    config = {**LLAMA_3_8B, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    shape = shape_of(config)
    assert weights_in(shape, "Q4_0").total < weights_in(shape, "Q4_K").total
    assert weights_in(shape, "Q4_K").total < weights_in(shape, "Q8_0").total


def test_kept_caches_of_eight_bits_have_a_scale_per_head():
    found = made(LLAMA_3_8B, kv_dtype="int8")
    assert found.kv_bytes_per_token == 32 * 2 * 8 * (128 + 4)


def test_a_batch_reads_the_experts_that_it_can_touch():
    shape = shape_of(released("MixtralForCausalLM")[1])
    weights = weights_in(shape, "bfloat16")
    assert weights.read(1) == 2 * (12_879_925_248 - 32_000 * 4096)  # active, less the lookup
    assert weights.read(4) == weights.read(100) == weights.total - weights.lookup


def test_operations_of_llama_3_8b():
    """2 x matrices, and 4 x heads x head size x context x layers: arXiv 2001.08361, table 1."""
    found = made(LLAMA_3_8B, context=1024)
    matrices = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    assert found.flops_decode == 2 * matrices + 4 * 4096 * 1024 * 32
    head, pairs = 128_256 * 4096, 1024 * 1025 // 2
    prefill = 1024 * 2 * (matrices - head) + 2 * head + 4 * 4096 * pairs * 32
    assert found.flops_prefill == prefill


def test_decode_of_one_sequence_is_bound_by_memory_and_a_prefill_by_compute():
    shape = shape_of(LLAMA_3_8B)
    weights = weights_in(shape, "bfloat16")
    found = estimate(shape, weights, context=1024)
    line = roofline(found, weights, DEVICES["H100"])
    assert (line.bound, line.prefill_bound, line.fits) == ("memory", "compute", True)
    assert line.decode_seconds == pytest.approx(found.bytes_decode / 3.35e12)
    assert line.prefill_seconds == pytest.approx(found.flops_prefill / 989.4e12)
    assert not roofline(found, weights_in(shape, "float32"), DEVICES["L4"]).bound == "compute"


def test_the_peak_is_that_of_the_type_or_of_what_stands_in_for_it():
    assert DEVICES["H100"].peak("fp8") == ("fp8", 1978.9e12)
    assert DEVICES["A100"].peak("fp8") == ("bfloat16", 312e12)
    assert DEVICES["A100"].peak("int8") == ("int8", 624e12)
    for device in DEVICES.values():
        assert device.source and device.peak("bfloat16")[1] >= device.peak("float32")[1]


def test_gguf_metadata_means_the_same_as_config_json(tmp_path):
    """A written file: the sizes come from metadata, and weight bytes from its tensors."""
    gguf = pytest.importorskip("gguf")
    import numpy

    from cutaway.cli.session.shape_at import shape_at

    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in {
        "embedding_length": 64, "block_count": 1, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.head_count_kv": 2, "context_length": 128,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{name}", value)
    sizes = {
        "token_embd": (320, 64), "output_norm": (64,), "blk.0.attn_norm": (64,),
        "blk.0.ffn_norm": (64,), "blk.0.attn_q": (64, 64), "blk.0.attn_k": (32, 64),
        "blk.0.attn_v": (32, 64), "blk.0.attn_output": (64, 64), "blk.0.ffn_gate": (96, 64),
        "blk.0.ffn_up": (96, 64), "blk.0.ffn_down": (64, 96),
    }  # fmt: skip
    for name, size in sizes.items():
        numbers = numpy.zeros(size, numpy.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if len(size) == 2 else None
        data = numbers if kind is None else gguf.quants.quantize(numbers, kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = {
        **LLAMA_3_8B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
        "tie_word_embeddings": True,
    }  # fmt: skip
    shape, weights, _ = shape_at(str(path))
    assert shape == shape_of(config)
    assert weights is not None
    assert weights.total == weights_in(shape, "Q8_0").total
    assert weights.values == estimate(shape, weights, context=1).parameters_total


def test_refuses_what_it_does_not_know():
    with pytest.raises(UnsupportedModelError, match=r"known are .*DeepseekV2ForCausalLM"):
        shape_of({"architectures": ["Unknown"]})
    with pytest.raises(UnsupportedModelError, match="attention_bias is true"):
        shape_of({**tiny("Qwen3NextForCausalLM", flags=False)[1], "attention_bias": True})
    for name, value in (
        ("vocab_size", True), ("hidden_size", -1), ("num_key_value_heads", 5),
        ("tie_word_embeddings", 3), ("num_hidden_layers", None),
    ):  # fmt: skip
        with pytest.raises(ModelFormatError, match=name):
            shape_of({**LLAMA_3_8B, name: value})
    gemma = tiny("Gemma2ForCausalLM", flags=False)[1]
    for kinds in (["full_attention"], "full_attention", [[]] * 8, ["other"] * 8):
        with pytest.raises((ModelFormatError, UnsupportedModelError), match="layer_types"):
            shape_of({**gemma, "layer_types": kinds})


def test_a_grouped_cache_is_that_of_the_engines_attention():
    from cutaway.core.layout import grouped_cache_spec

    (ours,) = Grouped(num_heads=8, num_groups=2, head_size=16, extent=Window(9)).cache_specs
    theirs = grouped_cache_spec(2, 16, Window(9))
    assert ours.extent == theirs.extent
    for dtype in ("float32", "bfloat16", "int8"):
        assert ours.bytes_per_token(dtype) == theirs.bytes_per_token(dtype)


def test_the_page_has_the_figures_of_its_examples():
    page = " ".join((ROOT / "docs" / "arithmetic.md").read_text("utf-8").split())
    llama = made(LLAMA_3_8B, context=8192)
    gemma = made(released("Gemma2ForCausalLM")[1], context=32_768)
    figures = (
        llama.parameters_total,
        llama.kv_bytes_per_token,
        llama.bytes_decode,
        llama.flops_decode,
        made(LLAMA_3_8B, context=1024).flops_decode,
        made(LLAMA_3_8B, quant="Q4_K").weight_bytes,
        made(LLAMA_3_8B, quant="int4").weight_bytes,
        made(released("DeepseekV3ForCausalLM")[1]).kv_bytes_per_token,
        gemma.kv_bytes_at_context,
        gemma.kv_bytes_per_token * 32_768,
        made(released("Qwen3NextForCausalLM")[1]).state_bytes,
    )
    for figure in figures:
        assert f"{figure:,}" in page, figure
    assert f"= {llama.intensity:.2f} operations" in page
    assert made(LLAMA_3_8B, context=100).kv_bytes_in_pages == 112 * 131_072


def test_json_has_numbers_only_where_numbers_are_due():
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(made(LLAMA_3_8B))))["parameters_total"] == 8_030_261_248
