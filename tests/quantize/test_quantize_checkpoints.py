"""Matrices of quantized checkpoints: read exactly, kept in their bits, packed as is said."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import checkpoint_layouts as layouts
import cutaway.quantize.checkpoints
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.kernels import native
from cutaway.quantize import CHECKPOINTS, checkpoint_reader
from cutaway.quantize.scheme import CheckpointFormat

# What multiplies and what readers share; every other file reads the method that the table names.
SHARED = {"packed_words", "part_faults", "quantization_config"}


class Module:
    """Tensors of one module, as a folder would give them."""

    module, file = "model.layers.0.self_attn.q_proj", "model"

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = {
            name: t if isinstance(t, torch.Tensor) else torch.from_numpy(t)
            for name, t in tensors.items()
        }
        weight = self.tensors.get("weight")
        if weight is not None and weight.dtype == torch.uint8:
            self.tensors["weight"] = weight.view(torch.float8_e4m3fn)

    def has(self, part: str) -> bool:
        return part in self.tensors

    def shape(self, part: str) -> tuple[int, ...]:
        return tuple(self.tensors[part].shape)

    def tensor(self, part: str) -> torch.Tensor:
        return self.tensors[part]


def reader(**settings: object) -> CheckpointFormat:
    return checkpoint_reader(settings, file="config.json")


def check(checkpoint: CheckpointFormat, tensors: dict[str, Any], wanted: np.ndarray) -> None:
    """Exact in float32, kept and by rows too; packed within scales rounded to float16."""
    module, matrix = Module(tensors), torch.from_numpy(wanted)
    assert checkpoint.shape(module) == wanted.shape
    stored = checkpoint.read(module)
    assert torch.equal(stored.dense(), matrix)
    order = torch.randperm(len(matrix), generator=torch.Generator().manual_seed(1))
    kept = stored.keep(None)
    assert kept is not None
    assert torch.equal(kept.dense(), matrix)
    assert torch.equal(kept.rows(order[:3]), matrix[order[:3]])
    x = torch.randn(3, matrix.shape[1], generator=torch.Generator().manual_seed(2))
    assert torch.equal(kept.multiply(x), x @ matrix.T)
    assert torch.equal(kept.multiply(x.bfloat16()), x.bfloat16() @ matrix.bfloat16().T)
    moved = stored.keep(order)
    assert moved is None or torch.equal(moved.dense(), matrix[order])
    if not native.is_available():
        return
    packed = stored.pack(order)
    if packed is not None:
        largest = matrix.abs().max()
        assert (packed.dense() - matrix[order]).abs().max() <= 2 * 2.0**-11 * largest


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("group_size", "options"),
    [
        (32, {}),
        (64, {"symmetric": True}),
        (-1, {}),
        (32, {"act_order": True}),
        (96, {"act_order": True, "symmetric": True}),
    ],
)
def test_gptq_is_read_as_it_was_packed(
    bits: int, version: int, group_size: int, options: dict[str, bool]
) -> None:
    tensors, wanted = layouts.gptq(
        48, 192, bits=bits, group_size=group_size, version=version, **options
    )
    settings = {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    method = reader(quant_method="gptq", bits=bits, group_size=group_size, **settings)
    check(method, tensors, wanted)
    if not options.get("act_order"):
        tensors.pop("g_idx")
        check(method, tensors, wanted)


def test_gptq_zeros_of_the_first_version_wrap_around() -> None:
    tensors, wanted = layouts.gptq(32, 64, version=2, seed=3)
    tensors["qzeros"] = np.full_like(tensors["qzeros"], -1)  # 15 is one below 0
    found = reader(quant_method="gptq", bits=4, group_size=32).read(Module(tensors)).dense()
    zeros_at_0 = reader(
        quant_method="gptq", bits=4, group_size=32, checkpoint_format="gptq_v2"
    ).read(Module({**tensors, "qzeros": np.zeros_like(tensors["qzeros"])}))
    assert torch.equal(found, zeros_at_0.dense())
    assert not np.array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("group_size", [32, 64, 192])
def test_awq_is_read_as_it_was_packed(group_size: int) -> None:
    tensors, wanted = layouts.awq(48, 192, group_size=group_size)
    method = reader(quant_method="awq", bits=4, group_size=group_size, version="gemm")
    check(method, tensors, wanted)


def test_awq_order_by_hand() -> None:
    # One column, eight rows with the values 0 to 7: their places in the word are 0 4 1 5 2 6 3 7.
    word = np.array([[0x7531_6420]], np.uint32).view(np.int32)
    tensors = {
        "qweight": word,
        "qzeros": np.zeros((1, 1), np.int32),
        "scales": np.ones((1, 8), np.float16),
    }
    matrix = reader(quant_method="awq", bits=4, group_size=1).read(Module(tensors)).dense()
    assert matrix.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_e4m3_bytes_are_the_published_numbers() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn).float().numpy()
    wanted = np.array([layouts.e4m3_value(code) for code in range(256)], np.float32)
    assert np.array_equal(values, wanted, equal_nan=True)


@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (37, 70), (16, 16)])
def test_fp8_blocks_are_read_with_the_last_ones_cut_short(rows: int, columns: int) -> None:
    tensors, wanted = layouts.fp8_blocks(rows, columns, block=(16, 32))
    check(reader(quant_method="fp8", weight_block_size=[16, 32]), tensors, wanted)


def test_fp8_with_one_scale() -> None:
    tensors, _ = layouts.fp8_blocks(8, 32, block=(8, 32))
    tensors["weight_scale"] = tensors.pop("weight_scale_inv").reshape(())
    wanted = Module(tensors).tensor("weight").float() * torch.from_numpy(tensors["weight_scale"])
    check(reader(quant_method="fp8"), tensors, wanted.numpy())


COMPRESSED = [
    ("pack", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}),
    ("pack", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
    ("pack", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    ("pack", {"num_bits": 8, "strategy": "channel", "symmetric": True}),
    ("pack", {"num_bits": 4, "strategy": "tensor", "symmetric": True}),
    ("int", {"num_bits": 8, "strategy": "channel", "symmetric": True}),
    ("int", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    ("int", {"num_bits": 8, "strategy": "tensor", "symmetric": True}),
    ("float", {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}),
    ("float", {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}),
    (
        "float",
        {
            **{"num_bits": 8, "type": "float", "strategy": "block", "symmetric": True},
            "block_structure": [16, 32],
        },
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("form", "settings"), COMPRESSED)
def test_compressed_tensors_equal_their_own_package(form: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors import compressors
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    oracle = {
        "pack": compressors.PackedQuantizationCompressor,
        "int": compressors.IntQuantizationCompressor,
        "float": compressors.FloatQuantizationCompressor,
    }[form]
    rows, columns = 48, 192
    args = QuantizationArgs(**settings)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    generator = torch.Generator().manual_seed(4)
    matrix = torch.randn(rows, columns, generator=generator)
    shape = {
        "group": (rows, columns // 32),
        "channel": (rows, 1),
        "tensor": (1,),
        "block": (rows // 16, columns // 32),
    }[settings["strategy"]]
    span = 448.0 if form == "float" else 2.0 ** (settings["num_bits"] - 1)
    state = {"weight": matrix, "weight_scale": torch.rand(shape, generator=generator) * 3 / span}
    if not settings["symmetric"]:
        low = -int(span)
        state["weight_zero_point"] = torch.randint(
            low, -low, shape, generator=generator, dtype=torch.int8
        )
    stored = oracle.compress(state, scheme)
    wanted = oracle.decompress(dict(stored), scheme)["weight"].float()
    config = {"config_groups": {"group_0": {"weights": settings}}}
    method = reader(quant_method="compressed-tensors", format=f"{form}-quantized", **config)
    check(method, dict(stored), wanted.numpy())


def test_compressed_order_of_activations() -> None:
    columns = 64
    groups = torch.randperm(columns, generator=torch.Generator().manual_seed(5)) // 32
    tensors, wanted = layouts.gptq(16, columns, version=2, symmetric=True)
    scales = torch.from_numpy(tensors["scales"].T.copy())
    quants = (torch.from_numpy(wanted) / scales.float().repeat_interleave(32, 1)).round()
    words = layouts._words((quants.numpy() + 8).astype(np.int64), 4)
    module = {
        "weight_packed": words,
        "weight_scale": scales,
        "weight_shape": torch.tensor([16, columns]),
        "weight_g_idx": groups.to(torch.int32),
    }
    method = reader(quant_method="compressed-tensors", format="pack-quantized")
    check(method, module, (quants * scales.float()[:, groups]).numpy())


def test_every_file_here_is_in_the_table_or_shared_and_every_entry_exists() -> None:
    files = {path.stem for path in Path(cutaway.quantize.checkpoints.__path__[0]).glob("*.py")}
    named = {entry.split(":")[0] for entry in CHECKPOINTS.values()}
    assert files - {"__init__"} == named | SHARED
    for entry in CHECKPOINTS.values():
        module, name = entry.split(":")
        assert hasattr(importlib.import_module(f"cutaway.quantize.checkpoints.{module}"), name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "known are awq, compressed-tensors, fp8, gptq"),
        ({"quant_method": "gptq", "bits": 3}, "bits of quantization_config is 3; 2, 4 and 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size .* is 0"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {}}}, "differ by module"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "gptq and gptq_v2"),
        ({"quant_method": "awq", "version": "gemv"}, "gemm can be read"),
        ({"quant_method": "awq", "bits": 8}, "AWQ has 4"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two sizes"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "pack-quantized"),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "bitmask"}},
            "sparse weights",
        ),
    ],
)
def test_what_cannot_be_read_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        reader(**settings)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "quant_method"),
        ({"quant_method": "gptq"}, "bits"),
        ({"quant_method": "gptq", "bits": "4"}, "bits"),
        ({"quant_method": "gptq", "bits": True}, "bits"),
        ({"quant_method": "fp8", "weight_block_size": ["x"]}, "weight_block_size"),
    ],
)
def test_settings_that_are_wrong_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        reader(**settings)
    assert caught.value.field == f"quantization_config.{field}"


@pytest.mark.parametrize("part", ["qzeros", "scales", "g_idx"])
def test_gptq_parts_that_contradict_each_other_are_named(part: str) -> None:
    tensors, _ = layouts.gptq(16, 64)
    tensors[part] = tensors[part][:1]
    with pytest.raises(ModelFormatError, match="has shape") as caught:
        reader(quant_method="gptq", bits=4, group_size=32).shape(Module(tensors))
    assert caught.value.field == f"{Module.module}.{part}"


def test_contradictions_of_other_methods_are_named() -> None:
    awq, _ = layouts.awq(16, 64)
    with pytest.raises(ModelFormatError, match="groups of 48"):
        reader(quant_method="awq", group_size=48).shape(Module(awq))
    blocks, _ = layouts.fp8_blocks(16, 64, block=(16, 32))
    with pytest.raises(ModelFormatError, match=r"ask for \(2, 8\)"):
        reader(quant_method="fp8", weight_block_size=[8, 8]).shape(Module(blocks))
    gptq, _ = layouts.gptq(16, 64)
    gptq["g_idx"] = gptq["g_idx"] + 9
    with pytest.raises(ModelFormatError, match="groups from 0 to 1"):
        reader(quant_method="gptq", bits=4, group_size=32).read(Module(gptq))
