"""Models written in fewer bits: read back as they were rounded, by us and by public tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import architectures
from cutaway.cli.commands import application
from cutaway.core.errors import ConfigError
from cutaway.core.request import SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.requantize import requantize
from cutaway.host import gguf_file
from cutaway.quantize.gguf.gguf_rounding import block_type, blocks_of
from cutaway.quantize.gguf.gguf_tensors import unpack
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import scheme_of
from cutaway.service.llm import LLM
from cutaway.weights.files.write_gguf import write_gguf
from cutaway.weights.find.find import find
from oracles import smollm2_gguf

pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    architectures.save(architectures.reference("llama", **SIZES), folder)
    return folder


def weights(path: Path, **settings: Any) -> dict[str, torch.Tensor]:
    config = EngineConfig(dtype="float32", device="cpu", **settings)
    return dict(load_model(find(str(path)), config).transformer.named_parameters())


def calibration() -> list[list[int]]:
    drawn = torch.randint(0, 256, (3, 80), generator=torch.Generator().manual_seed(5))
    return drawn.tolist()


@pytest.mark.parametrize("word", ["int8", "int8-asym", "int4", "int4-sym", "fp8"])
def test_a_written_folder_is_what_quant_rounds_at_load(
    word: str, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    assert requantize(find(str(folder)), scheme_of(word), out) == 14
    found, wanted = weights(out), weights(folder, quant=word)
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("word", ["int8", "int4", "int4-sym", "fp8"])
def test_transformers_reads_a_written_folder(word: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    import transformers

    out = tmp_path / "made"
    requantize(find(str(folder)), scheme_of(word), out)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        out,
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(run_compressed=False),
    )
    ids = torch.randint(0, 256, (1, 30), generator=torch.Generator().manual_seed(6))
    found = weights(out)
    with torch.no_grad():
        plain = architectures.reference("llama", **SIZES)
        state = plain.state_dict()
        for path in [path for path, _ in plain.named_modules() if path.endswith("_proj")]:
            state[f"{path}.weight"] = _segment(found, path, state[f"{path}.weight"].shape)
        plain.load_state_dict(state)
        wanted, given = plain(ids).logits, theirs(ids).logits
    # Its package multiplies integers in the type of their scales, float16; ours are in float32.
    error = (given - wanted).abs().max() / wanted.abs().max()
    assert error < (1e-5 if word == "fp8" else 4 * 2.0**-11)


def _segment(found: dict[str, torch.Tensor], path: str, shape: torch.Size) -> torch.Tensor:
    """A matrix of the loaded model, whose segments were joined."""
    layer, name = path.split(".")[2], path.split(".")[4]
    joined = {
        **{"q_proj": ("attention.qkv", 0), "k_proj": ("attention.qkv", 1)},
        **{"v_proj": ("attention.qkv", 2), "o_proj": ("attention.output", 0)},
        **{"gate_proj": ("mlp.gate_up", 0), "up_proj": ("mlp.gate_up", 1)},
        "down_proj": ("mlp.down", 0),
    }
    module, index = joined[name]
    whole = found[f"blocks.{layer}.{module}.segments.0.weight"]
    first = {0: 0, 1: len(whole) // 2, 2: len(whole) - shape[0]}[index]
    return whole[first : first + shape[0]]


def test_calibration_brings_answers_nearer(folder: Path, tmp_path: Path) -> None:
    found = find(str(folder))
    requantize(found, scheme_of("int4-sym"), tmp_path / "plain")
    requantize(found, scheme_of("int4-sym"), tmp_path / "calibrated", calibration=calibration())
    from cutaway.bench.quality import Judged, PromptLogits

    truth = PromptLogits(str(folder), dtype="float32")
    judged = {"plain": Judged(), "calibrated": Judged()}
    for name, sums in judged.items():
        made = PromptLogits(str(tmp_path / name), dtype="float32")
        for chunk in calibration():
            sums.add(made.of(chunk), truth.of(chunk), chunk)
    assert 0 < judged["calibrated"].kl < judged["plain"].kl


def test_texts_are_cut_for_models_of_short_sequences(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(folder, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32}))
    out = tmp_path / "made"
    requantize(find(str(short)), scheme_of("int4-sym"), out, calibration=calibration())
    from cutaway.bench.quality import PromptLogits

    made = PromptLogits(str(out), dtype="float32")
    chunks = made.chunks("every word of it " * 20, 70)
    assert [len(chunk) for chunk in chunks] == [31, 31, 8]
    assert made.of(chunks[0]).shape[0] == 31


@pytest.mark.parametrize(
    ("word", "type_name", "file_type"),
    [("int8", "Q8_0", 7), ("int4", "Q4_1", 3), ("int4-sym", "Q4_0", 2)],
)
def test_a_written_gguf_file_holds_the_rounded_numbers(
    word: str, type_name: str, file_type: int, tmp_path: Path
) -> None:
    package = pytest.importorskip("gguf")
    given = torch.randn(6, 64, generator=torch.Generator().manual_seed(7))
    source, out = tmp_path / "given.gguf", tmp_path / "made.gguf"
    writer = package.GGUFWriter(source, "llama")
    writer.add_file_type(0)
    writer.add_token_list(["a", "bc", "d"])
    writer.add_tensor("blk.0.attn_q.weight", given.numpy())
    writer.add_tensor("output_norm.weight", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file, scheme = gguf_file.read(source), scheme_of(word)
    assert block_type(scheme) == type_name
    made = round_matrix(given, scheme)
    assert isinstance(made, IntegerMatrix)

    def blocks(name: str) -> bytes | None:
        return blocks_of(made) if name == "blk.0.attn_q.weight" else None

    write_gguf(file, out, type_name=type_name, make=blocks)
    read = package.GGUFReader(str(out))
    assert read.get_field("general.file_type").contents() == file_type
    assert read.get_field("tokenizer.ggml.tokens").contents() == ["a", "bc", "d"]
    matrix, norm = read.tensors
    assert matrix.tensor_type.name == type_name and norm.data.tolist() == [0, 1, 2, 3, 4]
    values = package.quants.dequantize(matrix.data, matrix.tensor_type)
    # The offset of Q4_1 is rounded to float16: at most 15 steps to the 11 bits.
    allowed = 0.0 if scheme.is_symmetric else float(given.abs().max()) * 2.0**-10
    np.testing.assert_allclose(values, made.dense().numpy(), rtol=0, atol=allowed)
    assert torch.equal(unpack(gguf_file.read(out), "blk.0.attn_q.weight"), torch.from_numpy(values))
    with pytest.raises(FileExistsError):
        write_gguf(file, out, type_name=type_name, make=blocks)


def test_schemes_without_a_type_in_gguf_files_are_named() -> None:
    for word in ("fp8", "int8-asym", "int4-g64"):
        with pytest.raises(ConfigError, match="has no type in GGUF files; int8 becomes Q8_0"):
            block_type(scheme_of(word))


@pytest.mark.oracle
@pytest.mark.slow
def test_smollm2_is_written_as_a_smaller_file_that_answers(tmp_path: Path) -> None:
    out = tmp_path / "made.gguf"
    found = find(str(smollm2_gguf()))
    assert requantize(found, scheme_of("int4-sym"), out) == 210
    assert out.stat().st_size < smollm2_gguf().stat().st_size * 0.95
    llm = LLM(str(out), cache_tokens=256)
    asked = SamplingParams(temperature=0.0, max_tokens=4)
    assert "Paris" in llm.generate("The capital of France is", asked)[0].text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"word": "int4", "out": "x.gguf"}, "is no GGUF file; a GGUF file is written from one"),
        ({"word": "int4-g64", "out": "x"}, "has 96 columns, which are no multiple"),
        ({"word": "fp8", "out": "x", "calibration": [[1, 2]]}, "fp8 has no use for it"),
    ],
)
def test_what_does_not_go_together_is_named(
    arguments: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    from cutaway.core.errors import UnsupportedModelError

    with pytest.raises((ConfigError, UnsupportedModelError), match=message):
        requantize(
            find(str(folder)),
            scheme_of(arguments["word"]),
            tmp_path / arguments["out"],
            calibration=arguments.get("calibration", ()),
        )
    assert not list(tmp_path.iterdir())


def test_the_command_prints_bytes_and_measures(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It is a truth universally acknowledged. " * 8, encoding="utf-8")
    out = tmp_path / "made"
    asked = ["models", "quantize", str(folder), "--scheme", "int8", "--out", str(out)]
    done = CliRunner().invoke(
        application(), [*asked, "--text", str(text), "--text-tokens", "200", "--json"]
    )
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["matrices"] == 14 and figures["tokens"] == 199
    assert figures["bytes"] < figures["baseline_bytes"]
    assert 0 < figures["kl"] < 0.01 and figures["agreement"] > 0.9
    assert figures["baseline"] == f"{folder} in float32"
    again = CliRunner().invoke(application(), asked)
    assert again.exit_code != 0
