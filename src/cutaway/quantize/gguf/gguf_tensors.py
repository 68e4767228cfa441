"""Tensors of a GGUF file as numbers, exactly as the format defines them.

It knows stored types, not what a tensor is for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.host.gguf_file import GgufFile, GgufTensor
from cutaway.quantize.gguf.gguf_blocks import BLOCKS, BlockParts

# Types that keep plain numbers: they need no unpacking.
PLAIN: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}

_SIZES = {stored.name: (stored.block_values, stored.block_bytes) for stored in BLOCK_TYPES.values()}

# Values unpacked at once, so that what a turn needs stays in the processor's cache.
_CHUNK_VALUES = 2**17


def check_supported(tensor: GgufTensor, *, file: str) -> None:
    """Raise UnsupportedModelError, naming tensor and type, unless its type can be unpacked."""
    if tensor.type not in PLAIN and tensor.type not in BLOCKS:
        raise UnsupportedModelError(
            f"{file}: tensor {tensor.name} is stored as {tensor.type}; supported types are "
            f"{', '.join([*PLAIN, *BLOCKS])}. Take the model in one of these, for instance Q8_0."
        )


def unpack(file: GgufFile, name: str) -> Tensor:
    """One tensor in memory of its own: plain numbers in their own dtype, blocks as float32.

    Raises: UnsupportedModelError naming tensor and type.
    """
    tensor = file.tensors[name]
    check_supported(tensor, file=file.file)
    stored = np.frombuffer(file.data(name), np.uint8)
    if tensor.type in PLAIN:
        return torch.from_numpy(stored.copy()).view(PLAIN[tensor.type]).view(tensor.shape)
    block_values, block_bytes = _SIZES[tensor.type]
    blocks = stored.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block_values), np.float32)
    # In numpy and on one thread: torch on two took 0.4 s for SmolLM2 on quiet cores, but 2 to 6 s
    # as soon as other programs held one of them, where this takes 0.7 s.
    with np.errstate(all="ignore"):  # a scale may be infinite: the numbers show it
        for first in range(0, len(blocks), _CHUNK_VALUES // block_values):
            chunk = slice(first, first + _CHUNK_VALUES // block_values)
            _put_together(BLOCKS[tensor.type](blocks[chunk]), values[chunk])
    return torch.from_numpy(values).view(tensor.shape)


def _put_together(parts: BlockParts, values: NDArray[np.float32]) -> None:
    """Write quants * quant_scale + offset, each operation rounded as in the format's own code."""
    grouped = values.reshape(parts.quants.shape)
    np.multiply(parts.quants, parts.quant_scale, out=grouped)
    if parts.offset is not None:
        grouped += parts.offset
