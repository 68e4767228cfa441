"""Packing and unpacking: what a file holds is what the kernels multiply with."""

from __future__ import annotations

import numpy
import pytest
import torch
from native_cases import (
    INTEGER_KINDS,
    KINDS,
    needs_native,
    packed,
    q4_0_blocks,
    random,
    random_groups,
    running,
)

from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.kernels import native
from cutaway.kernels.native import library
from cutaway.quantize.gguf.gguf_blocks import BLOCKS
from cutaway.quantize.packed import Packed

pytestmark = needs_native


def blocks_of(type_name: str, rows: int, columns: int) -> bytes:
    """Random blocks whose scales are finite."""
    size = next(each.block_bytes for each in BLOCK_TYPES.values() if each.name == type_name)
    generator = torch.Generator().manual_seed(rows)
    raw = torch.randint(0, 256, (rows * columns // 32, size), generator=generator)
    raw = raw.to(torch.uint8)
    raw[:, 1] &= 0x3B  # the exponent's high bits: no infinity, no NaN
    raw[:, 3] &= 0x3B if type_name == "Q4_1" else 0xFF
    return raw.numpy().tobytes()


def unpacked(data: bytes, type_name: str, rows: int) -> torch.Tensor:
    size = next(each.block_bytes for each in BLOCK_TYPES.values() if each.name == type_name)
    parts = BLOCKS[type_name](numpy.frombuffer(data, numpy.uint8).reshape(-1, size))
    values = parts.quants.astype(numpy.float32) * parts.quant_scale
    values = values if parts.offset is None else values + parts.offset
    return torch.from_numpy(values.reshape(rows, -1))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (5, 64), (83, 576)])
def test_blocks_keep_their_exact_values(type_name: str, rows: int, columns: int) -> None:
    data = blocks_of(type_name, rows, columns)
    for isa in library.isas():
        with running(isa, threads=2):
            weight = native.PackedWeight.from_blocks(data, type_name, shape=(rows, columns))
            assert torch.equal(weight.dense(), unpacked(data, type_name, rows))


def test_packed_bytes_are_those_of_the_file_for_whole_panels() -> None:
    assert packed(native.Kind.Q4, 48, 64).num_bytes == len(q4_0_blocks(48, 64))


def test_row_order_moves_rows() -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    data = blocks_of("Q4_1", 40, 64)
    weight = native.PackedWeight.from_blocks(data, "Q4_1", shape=(40, 64), row_order=order)
    assert torch.equal(weight.dense(), unpacked(data, "Q4_1", 40)[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_kinds_round_as_torch_does(dtype: torch.dtype) -> None:
    matrix = torch.cat((random(37, 45), random(37, 45) * 1e-6, random(37, 45) * 1e4), dim=1)
    matrix = matrix.to(dtype)
    for kind, kept in (
        (native.Kind.F32, torch.float32),
        (native.Kind.F16, torch.float16),
        (native.Kind.BF16, torch.bfloat16),
    ):
        weight = native.PackedWeight.from_matrix(matrix, kind)
        assert torch.equal(weight.dense(), matrix.to(kept).float())


@pytest.mark.parametrize(
    ("kind", "share"), [(native.Kind.Q8, 1 / 253), (native.Kind.Q4_AFFINE, 1 / 29)]
)
def test_integers_are_within_half_a_step(kind: native.Kind, share: float) -> None:
    matrix = random(33, 96)
    weight = native.PackedWeight.from_matrix(matrix, kind)
    groups = matrix.unflatten(-1, (-1, 32))
    width = groups.abs().amax(-1) if kind is native.Kind.Q8 else groups.amax(-1) - groups.amin(-1)
    error = (weight.dense() - matrix).abs().unflatten(-1, (-1, 32)).amax(-1)
    assert (error <= width * share).all()


def test_a_constant_group_is_kept() -> None:
    weight = native.PackedWeight.from_matrix(torch.full((3, 32), 0.25), native.Kind.Q4_AFFINE)
    assert (weight.dense() == 0.25).all()
    zeros = native.PackedWeight.from_matrix(torch.zeros(3, 32), native.Kind.Q8)
    assert (zeros.dense() == 0).all()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_of_a_table_are_those_of_the_matrix(kind: native.Kind) -> None:
    weight = packed(kind, 50, 96)
    ids = torch.tensor([0, 49, 7, 7, 16])
    out = torch.empty(5, 96)
    step = native.NativeStep.of_rows(5)
    step.struct.token_ids = ids.data_ptr()
    with running(threads=2):
        native.run(native.gather(weight, out=out), step)
        assert torch.equal(out, weight.dense()[ids])
        native.run(native.gather(weight, out=out, multiplier=25.25), step)
    assert torch.equal(out, weight.dense()[ids] * 25.25)
    assert torch.equal(weight.rows(ids), weight.dense()[ids])


@pytest.mark.parametrize("kind", INTEGER_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (5, 64), (83, 576)])
def test_groups_keep_their_exact_values(kind: native.Kind, rows: int, columns: int) -> None:
    whole = random_groups(kind, rows, columns)
    spread = [
        None if x is None else x.repeat_interleave(kind.scale_columns, 1)
        for x in (whole.quant_scale, whole.offset)
    ]
    middle = 8.0 if kind is native.Kind.Q4 else 0.0
    wanted = (whole.quants.float() - middle) * spread[0]
    wanted = wanted if spread[1] is None else wanted + spread[1]
    pieces = [
        native.Groups(
            whole.quants[at : at + 32],
            whole.quant_scale[at : at + 32],
            None if whole.offset is None else whole.offset[at : at + 32],
        )
        for at in range(0, rows, 32)
    ]
    for isa in library.isas():
        with running(isa, threads=2):
            weight = native.PackedWeight.from_groups(kind, pieces, shape=(rows, columns))
            assert weight is not None
            assert torch.equal(weight.dense(), wanted)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_numbers", [1, 40 * 64, 10**6])
def test_tiles_of_a_table_are_the_matrix(kind: native.Kind, num_numbers: int) -> None:
    weight = packed(kind, 83, 64)
    tiles = list(weight.tiles(num_numbers))
    assert all(each.numel() <= max(num_numbers, 16 * 64) for each in tiles)
    assert torch.equal(torch.cat(tiles), weight.dense())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_packed_matrix_multiplies_as_a_step_does(kind: native.Kind) -> None:
    weight, x = Packed(packed(kind, 83, 64)), random(5, 64)
    found, plain = weight.multiply_packed(x), weight.multiply(x)
    assert found.shape == (5, 83)
    # Integers meet activations of 8 bits.
    assert (found - plain).abs().max() <= (0.02 if kind.is_integer else 1e-5) * plain.abs().max()
    assert torch.equal(found[2:3], weight.multiply_packed(x[2:3])), "alone as beside others"


def test_groups_beyond_float16_are_not_packed() -> None:
    whole = random_groups(native.Kind.Q8, 16, 32)
    large = native.Groups(whole.quants, whole.quant_scale * 1e7)
    assert native.PackedWeight.from_groups(native.Kind.Q8, [large], shape=(16, 32)) is None
    infinite = native.Groups(whole.quants, whole.quant_scale * torch.inf)
    assert native.PackedWeight.from_groups(native.Kind.Q8, [infinite], shape=(16, 32)) is not None


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(AssertionError, match="33 columns"):
        native.PackedWeight.from_matrix(random(4, 33), native.Kind.Q8)
    with pytest.raises(AssertionError, match="are not Q4_1"):
        native.PackedWeight.from_blocks(bytes(7), "Q4_1", shape=(1, 32))
    with pytest.raises(AssertionError, match="not possible"):
        order = torch.tensor([0, 4])
        native.PackedWeight.from_matrix(random(2, 32), native.Kind.Q8, row_order=order)
