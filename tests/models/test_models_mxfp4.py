"""Experts in MXFP4: numbers against transformers, and gpt-oss over a checkpoint that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import architectures
from cutaway.core.errors import ConfigError, ModelFormatError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.kernels import capture
from cutaway.quantize.mxfp4 import Mxfp4Stack, unpack_mxfp4
from cutaway.quantize.packed_stack import PackedStack
from cutaway.weights.find.find import find
from engines import engine, run
from thread_ranks import assert_rows_of_one

pytest.importorskip("transformers")

STACKS = ("gate_up_proj", "down_proj")


def drawn(count: int, rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, rows, columns // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(118, 125, shape, generator=generator, dtype=torch.uint8)


def test_a_block_by_hand() -> None:
    blocks = torch.tensor([[0x21, 0x9F] + [0] * 14], dtype=torch.uint8)
    numbers = unpack_mxfp4(blocks, torch.tensor([129], dtype=torch.uint8), torch.float32)
    assert numbers[:5].tolist() == [4 * 0.5, 4 * 1.0, 4 * -6.0, 4 * -0.5, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_equal_transformers(dtype: torch.dtype) -> None:
    reference = pytest.importorskip("transformers.integrations.mxfp4")
    blocks, scales = drawn(3, 10, 64, seed=1)
    theirs = reference.convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    stack = Mxfp4Stack(blocks, scales)
    ours = torch.stack([stack.matrix(index, dtype) for index in range(3)])
    assert torch.equal(ours.transpose(1, 2), theirs)
    assert stack.num_bytes * 8 == 4.25 * ours.numel()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A tiny gpt-oss, and a folder with the same experts in MXFP4."""
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 4, "head_dim": 16}
    word, changes = architectures.CASES["gpt-oss"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(architectures.CASES, "gpt-oss", (word, {**changes, **sizes}))
        theirs = architectures.reference("gpt-oss")
    folder = tmp_path_factory.mktemp("mxfp4")
    packed: dict[str, Tensor] = {}
    for layer, block in enumerate(theirs.model.layers):
        for number, name in enumerate(STACKS):
            parameter = getattr(block.mlp.experts, name)
            count, columns, rows = parameter.shape
            blocks, scales = drawn(count, rows, columns, seed=10 * layer + number)
            parameter.data.copy_(unpack_mxfp4(blocks, scales, torch.float32).transpose(1, 2))
            stored = f"model.layers.{layer}.mlp.experts.{name}"
            packed |= {f"{stored}_blocks": blocks, f"{stored}_scales": scales}
    architectures.save(theirs, folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.endswith(STACKS)}
    safetensors.torch.save_file(kept | packed, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    return theirs, folder


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_gpt_oss_answers_as_transformers_over_the_same_numbers(
    saved: tuple[Any, Path], dtype: str
) -> None:
    theirs, folder = saved
    model = load_model(find(str(folder)), EngineConfig(dtype=dtype, device="cpu"))
    # Native kernels have the matrices in panels, torch as they are in the file.
    kept = PackedStack if capture.is_available() else Mxfp4Stack
    stacks = [m for m in model.transformer.modules() if isinstance(m, kept)]
    assert len(stacks) == (0 if dtype == "float32" else 2 * len(theirs.model.layers))
    prompt = tuple(range(40))
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    asked = Request(request_id="r", prompt_token_ids=prompt, params=greedy)
    (answer,) = run(engine(model), [asked]).values()
    with torch.no_grad():
        logits = theirs(torch.tensor([[*prompt, *answer.token_ids[:-1]]])).logits[0]
    expected = logits[len(prompt) - 1 :].argmax(dim=-1).tolist()
    assert answer.token_ids == expected


def test_blocks_that_do_not_fit_their_scales_are_refused(
    saved: tuple[Any, Path], tmp_path: Path
) -> None:
    tensors = safetensors.torch.load_file(saved[1] / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    tensors[f"{name}_scales"] = tensors[f"{name}_scales"][:, :-1].contiguous()
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((saved[1] / file).read_bytes())
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=f"{name}_blocks: has shape"):
        load_model(find(str(tmp_path)), EngineConfig(dtype="float32"))


def test_mxfp4_is_not_rounded_once_more(saved: tuple[Any, Path]) -> None:
    with pytest.raises(ConfigError, match="is quantized already"):
        load_model(find(str(saved[1])), EngineConfig(dtype="float32", quant="int8"))


@pytest.mark.skipif(not capture.is_available(), reason="needs the native kernels")
def test_scale_t2_ranks_over_mxfp4_give_the_rows_of_one(saved: tuple[Any, Path]) -> None:
    assert_rows_of_one(str(saved[1]), 2)
