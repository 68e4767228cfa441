"""The table of architectures: every entry loads, every file is named, unknown words are refused."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import cutaway.models
from architectures import COMMON
from cutaway import LLM, SamplingParams
from cutaway.core.errors import UnsupportedModelError
from cutaway.kernels import capture
from cutaway.models import ARCHITECTURES, GGUF_ARCHITECTURES, architecture_file, gemma4, nanochat
from cutaway.models.parts.config_fields import Fields
from cutaway.quantize.packed import Packed
from published_shapes import CLASSES, tiny

TABLES = {"from_hf": ARCHITECTURES, "from_gguf": GGUF_ARCHITECTURES}


@pytest.mark.parametrize("reader", TABLES)
def test_every_entry_names_a_file_that_reads_its_layout(reader: str) -> None:
    for word in TABLES[reader]:
        assert hasattr(architecture_file(word, TABLES[reader], file="config.json"), reader)


def test_every_architecture_file_is_named_by_the_table() -> None:
    named = {entry for table in TABLES.values() for entry in table.values()}
    for file in Path(cutaway.models.__path__[0]).glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        is_architecture = bool(functions & TABLES.keys())
        assert (file.stem in named) == is_architecture, file


def test_architecture_files_import_no_other_and_nobody_imports_them() -> None:
    named = {entry for table in TABLES.values() for entry in table.values()}
    for file in Path(cutaway.models.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "cutaway.models":
                assert not named & {alias.name for alias in node.names}, file
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).removeprefix("cutaway.models.") not in named, file


def test_a_configuration_is_read_without_torch(tmp_path: Path) -> None:
    """Of every architecture: shape, facts and places of weights."""
    configs = {word: tiny(word, flags=True)[1] for word in CLASSES}
    (tmp_path / "configs.json").write_text(json.dumps(configs))
    code = (
        "import json, sys\n"
        "from cutaway.models.parts.reading import read_config\n"
        "for values in json.load(open(sys.argv[1])).values():\n"
        "    made = read_config(values).architecture\n"
        "    assert made.shape.layers and made.facts.num_parameters and made.targets('hf')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "configs.json")], check=True)


def test_g09_an_unknown_architecture_gets_the_known_ones_before_a_weight_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["FooForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(UnsupportedModelError) as fault:
        LLM(str(tmp_path))
    assert '"FooForCausalLM" is not known' in str(fault.value)
    assert all(word in str(fault.value) for word in ARCHITECTURES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9},
            "vocab_size_per_layer_input is 9; it must be vocab_size, 270, so that",
        ),
        ({"use_bidirectional_attention": "all"}, 'use_bidirectional_attention is "all"; causal'),
        ({"layer_types": ["chunked_attention"] * 3}, "['chunked_attention'] unknown ones"),
        ({"hidden_activation": "tanh"}, 'hidden_activation is "tanh"; known are silu, swish,'),
    ],
)
def test_parts_that_are_left_out_are_refused_by_name(change: dict, message: str) -> None:
    values = {**COMMON, "hidden_size_per_layer_input": 0, **change}
    with pytest.raises(UnsupportedModelError) as fault:
        gemma4.from_hf(Fields(values, file="config.json"))
    assert message in str(fault.value)


def test_frequencies_that_nanochat_cannot_turn_backwards_are_refused_by_name() -> None:
    rope = {"rope_type": "linear", "factor": 2.0}
    values = {**COMMON, "rope_parameters": rope}
    with pytest.raises(UnsupportedModelError, match="rope_type is that of Linear; of NanoChat"):
        nanochat.from_hf(Fields(values, file="config.json"))


def test_a_model_of_which_a_part_runs_in_torch_is_packed_all_the_same(tmp_path: Path) -> None:
    """GPT-2 looks its positions up in torch; that operation alone, and not the whole model."""
    values = {**COMMON, "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4}
    (tmp_path / "config.json").write_text(json.dumps(values | {"n_layer": 2}))
    llm = LLM(f"random:{tmp_path}/config.json", cache_tokens=1024, device="cpu")
    kinds = {type(module) for module in llm.engine.model.transformer.modules()}
    assert (Packed in kinds) == capture.is_available()
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    assert len(llm.generate("Hello", greedy)[0].token_ids) == 4
