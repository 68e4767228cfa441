"""Every block type in the native layouts: the file's values, and products on every CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_cases import ISAS, needs_native, random, rounded, running

from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.kernels import native
from cutaway.kernels.native import library
from cutaway.quantize.gguf.gguf_blocks import BLOCKS
from gguf_cases import NUMBERS, random_blocks

pytestmark = needs_native

# Types whose scales and offsets are stored as they are used: nothing is rounded.
EXACT = {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"}
# A rounded scale or offset is off by at most half of the last of float16's 11 bits.
HALF = 2.0**-11
ROWS, COLUMNS = 37, 512


def stored(type: str, seed: int = 3) -> np.ndarray:
    per_block = BLOCK_TYPES[NUMBERS[type]].block_values
    return random_blocks(type, ROWS * COLUMNS // per_block, seed=seed)


def values_of(type: str, blocks: np.ndarray) -> torch.Tensor:
    """The gguf package's own reading."""
    oracle = pytest.importorskip("gguf")
    values = oracle.quants.dequantize(blocks, oracle.GGMLQuantizationType[type])
    return torch.from_numpy(np.array(values, np.float32)).view(ROWS, COLUMNS)


def packed(type: str, blocks: np.ndarray, order: torch.Tensor | None = None) -> native.PackedWeight:
    weight = native.PackedWeight.from_blocks(
        blocks.tobytes(), type, shape=(ROWS, COLUMNS), row_order=order
    )
    assert weight is not None
    return weight


def rounding_of(type: str, blocks: np.ndarray) -> torch.Tensor:
    """The most by which each value may move: scale times integer, and offset, one by one."""
    parts = BLOCKS[type](blocks)
    quants = np.abs(parts.quants.astype(np.float64))
    quants += 8 * (parts.offset is None)  # those of Q3_K count from 0, with eight scales as offset
    size = quants * np.abs(parts.quant_scale) + np.abs(
        parts.offset if parts.offset is not None else 0
    )
    return torch.from_numpy(size.reshape(ROWS, COLUMNS)) * HALF + 1e-9


def test_every_type_that_can_be_read_has_a_layout() -> None:
    assert all(native.PackedWeight.takes_blocks(type) for type in BLOCKS)
    assert not native.PackedWeight.takes_blocks("IQ2_XXS")


@pytest.mark.parametrize("type", BLOCKS)
def test_packed_values_are_those_of_the_file(type: str) -> None:
    blocks = stored(type)
    wanted, found = values_of(type, blocks), packed(type, blocks).dense()
    if type in EXACT:
        assert torch.equal(found, wanted)
    assert ((found - wanted).abs() <= rounding_of(type, blocks)).all()


@pytest.mark.parametrize("type", BLOCKS)
def test_packed_product_is_that_of_the_unpacked_matrix(type: str) -> None:
    # Against dequantize-then-multiply, with activations rounded as integer weights see them. What
    # is left: float32 sums (1e-5), and the rounding of scales where there is one.
    blocks = stored(type)
    x = random(9, COLUMNS, seed=5)
    exact = rounded(x) @ values_of(type, blocks).double().T
    allowed = rounded(x).abs() @ rounding_of(type, blocks).T + 1e-5 * exact.abs().max()
    weight = packed(type, blocks)
    for isa in ISAS:
        if isa not in library.isas():
            continue
        for count in (1, 9):
            out = torch.empty(count, ROWS)
            with running(isa):
                operation = native.linear(x[:count].contiguous(), [weight], out=out)
                native.run(operation, native.NativeStep.of_rows(count))
            assert ((out - exact[:count]).abs() <= allowed[:count]).all(), isa


@pytest.mark.parametrize("type", ["Q4_K", "Q6_K", "Q8_0"])
def test_packed_rows_follow_their_order(type: str) -> None:
    blocks = stored(type)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    assert torch.equal(packed(type, blocks, order).dense(), packed(type, blocks).dense()[order])


def test_scales_beyond_float16_are_left_to_floats() -> None:
    block = np.zeros((16, 144), np.uint8)
    block[:, :2] = np.frombuffer(np.float16(60_000).tobytes(), np.uint8)
    block[:, 4:] = 63
    assert native.PackedWeight.from_blocks(block.tobytes(), "Q4_K", shape=(16, 256)) is None
    block[:, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    assert native.PackedWeight.from_blocks(block.tobytes(), "Q4_K", shape=(16, 256)) is not None


def test_exponents_of_mxfp4_beyond_float16_are_left_to_floats_or_become_zeros() -> None:
    block = np.full((16, 17), 0x77, np.uint8)
    for exponent, values in ((143, 12 * 2.0**15), (104, 12 * 2.0**-24), (100, 0.0)):
        block[:, 0] = exponent
        weight = native.PackedWeight.from_blocks(block.tobytes(), "MXFP4", shape=(16, 32))
        assert weight is not None and (weight.dense() == values).all()
    block[:, 0] = 144
    assert native.PackedWeight.from_blocks(block.tobytes(), "MXFP4", shape=(16, 32)) is None
