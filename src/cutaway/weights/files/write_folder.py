"""Writes a quantized model folder in the layout of compressed-tensors, which other engines read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.host.whole_file import whole_folder
from cutaway.quantize.checkpoints.packed_words import pack_words
from cutaway.quantize.floats8 import Float8Matrix
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.schemes import Scheme
from cutaway.weights.files.safetensors_index import SINGLE
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.folder import CONFIG
from cutaway.weights.source import WeightSource

_LEFT_OUT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".index.json")

Make = Callable[[str], "IntegerMatrix | Float8Matrix | None"]


def write_folder(
    source: WeightSource, found: Path, out: Path, *, scheme: Scheme, make: Make
) -> None:
    """Write weights, config.json and the small files beside them, all of them or nothing.

    make: the quantized form of a tensor, or None where it stays.
    Raises: OSError.
    """
    tensors: dict[str, Tensor] = {}
    stay: list[str] = []
    for name in source.names():
        made = make(name)
        module = name.removesuffix(".weight")
        if made is None:
            tensors[name] = source.tensor(name)
            if len(source.shape(name)) == 2:
                stay.append(module)
        else:
            parts = _integer_parts(made) if isinstance(made, IntegerMatrix) else _float_parts(made)
            tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    with whole_folder(out) as half:
        for file in sorted(found.iterdir()):
            if file.is_file() and file.name != CONFIG and not file.name.endswith(_LEFT_OUT):
                shutil.copyfile(file, half / file.name)
        config = json.loads((found / CONFIG).read_bytes())
        config["quantization_config"] = settings_of(scheme, stay)
        (half / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_safetensors(half / SINGLE, tensors)


def settings_of(scheme: Scheme, stay: list[str]) -> Mapping[str, Any]:
    """The quantization_config of a scheme; stay: modules that are left as they are."""
    weights: dict[str, Any] = {
        "num_bits": scheme.bits,
        "symmetric": scheme.is_symmetric,
        "dynamic": False,
    }
    if scheme.kind == "floats":
        weights |= {"type": "float", "strategy": "channel"}
    else:
        weights |= {"type": "int", "strategy": "group", "group_size": scheme.group_size}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if scheme.kind == "floats" else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": stay,
    }


def _integer_parts(matrix: IntegerMatrix) -> dict[str, Tensor]:
    parts = {
        "weight_packed": pack_words(matrix.quants, matrix.bits, dim=1),
        "weight_scale": matrix.quant_scale,
        "weight_shape": torch.tensor(matrix.quants.shape),
    }
    if matrix.zero.numel() > 1:
        zero = matrix.zero.to(torch.uint8)
        parts["weight_zero_point"] = pack_words(zero, matrix.bits, dim=0)
    return parts


def _float_parts(matrix: Float8Matrix) -> dict[str, Tensor]:
    return {"weight": matrix.values, "weight_scale": matrix.quant_scale}
