"""Unpacking of GGUF tensors: equal to the gguf package, value for value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gguf_bytes as b
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.host import gguf_file
from cutaway.quantize.gguf.gguf_blocks import BLOCKS
from cutaway.quantize.gguf.gguf_tensors import PLAIN, check_supported, unpack
from gguf_cases import NUMBERS, random_blocks
from oracles import smollm2_gguf


def one_tensor(folder: Path, type: str, shape: tuple[int, ...], data: bytes) -> gguf_file.GgufFile:
    path = folder / "m.gguf"
    entry = b.tensor("blk.0.attn_q.weight", shape[::-1], type=NUMBERS[type])
    path.write_bytes(b.gguf([], [entry], data))
    return gguf_file.read(path)


@pytest.mark.parametrize("type", BLOCKS)
def test_g07_random_blocks_equal_the_gguf_package(type: str, tmp_path: Path) -> None:
    oracle = pytest.importorskip("gguf")
    blocks = random_blocks(type, 5 * 3, seed=7)
    expected = oracle.quants.dequantize(blocks, oracle.GGMLQuantizationType[type])
    shape = (5, 3 * BLOCK_TYPES[NUMBERS[type]].block_values)
    values = unpack(one_tensor(tmp_path, type, shape, blocks.tobytes()), "blk.0.attn_q.weight")
    assert values.dtype == torch.float32
    assert values.shape == shape
    assert np.array_equal(values.numpy(), expected.reshape(shape))
    assert np.count_nonzero(expected) > expected.size // 2


def test_g07_q4_1_block_by_hand(tmp_path: Path) -> None:
    block = np.array([0.5, -1], np.float16).tobytes() + b"\x21" * 16
    values = unpack(one_tensor(tmp_path, "Q4_1", (1, 32), block), "blk.0.attn_q.weight")
    assert values.tolist() == [[-0.5] * 16 + [0.0] * 16]


def test_tensor_of_more_than_one_chunk_equals_the_gguf_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = pytest.importorskip("gguf")
    monkeypatch.setattr("cutaway.quantize.gguf.gguf_tensors._CHUNK_VALUES", 96)
    blocks = random_blocks("Q8_0", 10, seed=8)
    expected = oracle.quants.dequantize(blocks, oracle.GGMLQuantizationType.Q8_0)
    values = unpack(one_tensor(tmp_path, "Q8_0", (10, 32), blocks.tobytes()), "blk.0.attn_q.weight")
    assert np.array_equal(values.numpy(), expected)


@pytest.mark.parametrize("type", PLAIN)
def test_plain_numbers_keep_their_dtype_and_bits(type: str, tmp_path: Path) -> None:
    numbers = torch.tensor([[1.5, -0.0, 70_000.0], [2**-14, float("inf"), 3.0]]).to(PLAIN[type])
    data = bytes(numbers.view(torch.uint8).numpy())
    values = unpack(one_tensor(tmp_path, type, (2, 3), data), "blk.0.attn_q.weight")
    assert values.dtype == PLAIN[type]
    assert torch.equal(values.view(torch.uint8), numbers.view(torch.uint8))


def test_unpacked_tensor_does_not_need_the_file(tmp_path: Path) -> None:
    file = one_tensor(tmp_path, "F32", (4,), bytes(16))
    values = unpack(file, "blk.0.attn_q.weight")
    values += 1
    assert bytes(file.data("blk.0.attn_q.weight")) == bytes(16)


def test_unsupported_type_names_tensor_type_and_what_is_supported(tmp_path: Path) -> None:
    file = one_tensor(tmp_path, "IQ2_S", (1, 256), bytes(82))
    message = r"attn_q\.weight is stored as IQ2_S; supported types are F32, F16, BF16, F64, Q4_0"
    with pytest.raises(UnsupportedModelError, match=message):
        check_supported(file.tensors["blk.0.attn_q.weight"], file="m.gguf")
    with pytest.raises(UnsupportedModelError, match=message):
        unpack(file, "blk.0.attn_q.weight")


@pytest.mark.parametrize("exponent", [0, 1, 2, 127, 254, 255])
def test_mxfp4_exponents_equal_the_gguf_package(exponent: int, tmp_path: Path) -> None:
    oracle = pytest.importorskip("gguf")
    blocks = np.array([[exponent, *range(0x10, 0x20)]], np.uint8)
    with np.errstate(over="ignore"):
        expected = oracle.quants.dequantize(blocks, oracle.GGMLQuantizationType.MXFP4)
    values = unpack(one_tensor(tmp_path, "MXFP4", (1, 32), blocks.tobytes()), "blk.0.attn_q.weight")
    assert np.array_equal(values.numpy(), expected.reshape(1, 32))


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.7.attn_q.weight", "output_norm.weight"])
def test_smollm2_tensor_equals_the_gguf_package(name: str) -> None:
    oracle = pytest.importorskip("gguf")
    file = gguf_file.read(smollm2_gguf())
    stored = file.tensors[name]
    raw = np.frombuffer(file.data(name), np.uint8).reshape(stored.shape[0], -1)
    expected = oracle.quants.dequantize(raw, oracle.GGMLQuantizationType[stored.type])
    assert np.array_equal(unpack(file, name).numpy().ravel(), expected.ravel())
