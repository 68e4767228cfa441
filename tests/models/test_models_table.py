"""The table of architectures: every entry loads, every file is named, unknown words are refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import cutaway.models
from architectures import COMMON
from cutaway import LLM, SamplingParams
from cutaway.core.errors import UnsupportedModelError
from cutaway.models import ARCHITECTURES, GGUF_ARCHITECTURES, architecture_class
from cutaway.models.fields import Fields
from cutaway.models.gemma4 import Gemma4
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed

TABLES = {"from_hf": ARCHITECTURES, "from_gguf": GGUF_ARCHITECTURES}


@pytest.mark.parametrize("reader", TABLES)
def test_every_entry_names_a_class_that_reads_its_layout(reader: str) -> None:
    for word in TABLES[reader]:
        assert hasattr(architecture_class(word, TABLES[reader], file="config.json"), reader)


def test_every_architecture_file_is_named_by_the_table() -> None:
    named = {entry.split(":")[0] for table in TABLES.values() for entry in table.values()}
    for file in Path(cutaway.models.__path__[0]).glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        is_architecture = any(methods(each) & TABLES.keys() for each in classes)
        assert (file.stem in named) == is_architecture, file


def methods(found: ast.ClassDef) -> set[str]:
    return {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


def test_g09_an_unknown_architecture_gets_the_known_ones_before_a_weight_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["FooForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(UnsupportedModelError) as fault:
        LLM(str(tmp_path))
    assert "'FooForCausalLM' is not known" in str(fault.value)
    assert all(word in str(fault.value) for word in ARCHITECTURES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9},
            "vocab_size_per_layer_input is 9; it must be vocab_size, 270, so that",
        ),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'; causal"),
        ({"layer_types": ["chunked_attention"] * 3}, "['chunked_attention'] unknown ones"),
        ({"hidden_activation": "tanh"}, "hidden_activation is 'tanh'; known are silu, swish,"),
    ],
)
def test_parts_that_are_left_out_are_refused_by_name(change: dict, message: str) -> None:
    values = {**COMMON, "hidden_size_per_layer_input": 0, **change}
    with pytest.raises(UnsupportedModelError) as fault:
        Gemma4.from_hf(Fields(values, file="config.json"))
    assert message in str(fault.value)


def test_a_model_without_a_native_form_keeps_its_weights_as_floats(tmp_path: Path) -> None:
    values = {**COMMON, "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4}
    (tmp_path / "config.json").write_text(json.dumps(values | {"n_layer": 2}))
    llm = LLM(f"random:{tmp_path}/config.json", cache_tokens=1024, device="cpu")
    kinds = {type(module) for module in llm.engine.model.transformer.modules()}
    assert DenseWeight in kinds and Packed not in kinds
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    assert len(llm.generate("Hello", greedy)[0].token_ids) == 4
