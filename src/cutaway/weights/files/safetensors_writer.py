"""Writes a safetensors file, one tensor after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write them all.

    Raises: OSError.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # the format asks for a whole number of eight bytes
    with path.open("wb") as opened:
        opened.write(len(raw).to_bytes(8, "little"))
        opened.write(raw)
        for tensor in tensors.values():
            flat = tensor.contiguous().reshape(-1)
            opened.write(flat.view(torch.uint8).numpy().data)
