"""Tensors of a model folder: model.safetensors alone, or the shards that its index names.

Tensors are read into memory of their own, never mapped, so that a file which changes later cannot
change a model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from cutaway.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from cutaway.quantize.scheme import Quantized
from cutaway.weights.files.safetensors_index import SINGLE, folder_tensors
from cutaway.weights.files.staged_reads import StagedReads

_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# What parts of quantized matrices are stored in besides.
_PART_DTYPES: Mapping[str, torch.dtype] = {
    **_DTYPES,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}


class SafetensorsWeights:
    """Tensors of one folder.

    named: what the model calls a stored tensor; None for one that it does not have.
    single: the file that holds them all, where there is one.

    Raises: ModelFormatError, UnsupportedModelError, ModelNotFoundError when it is made, once all
    headers were judged.
    """

    def __init__(
        self,
        folder: Path,
        *,
        named: Callable[[str], str | None] = str,
        single: str = SINGLE,
    ) -> None:
        self._folder = folder
        try:
            stored = folder_tensors(folder, single=single)
        except OSError as error:
            raise _unreadable(folder, error) from error
        own = ((named(name), tensor) for name, tensor in stored.items())
        self._tensors = {name: tensor for name, tensor in own if name is not None}
        self._reads: StagedReads | None = None

    def send_to(self, device: torch.device) -> None:
        """Give what is read from now on there, where it is a GPU."""
        self._reads = StagedReads(device) if device.type == "cuda" else None

    @property
    def file(self) -> str:
        """What messages call it."""
        return str(self._folder)

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, rows first, without reading it."""
        return self._tensors[name].shape

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError, naming the tensor, unless its stored type can be read."""
        tensor = self._tensors[name]
        if tensor.dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{tensor.path}: tensor {name} is stored as {tensor.dtype}; supported types are "
                f"{', '.join(_DTYPES)}."
            )

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers. Raises: UnsupportedModelError for any other type."""
        self.check(name)
        return self.part(name)

    def part(self, name: str) -> Tensor:
        """A tensor in the type in which it is stored, which may be one of integers.

        Raises: UnsupportedModelError naming the tensor.
        """
        tensor = self._tensors[name]
        if tensor.dtype not in _PART_DTYPES:
            raise UnsupportedModelError(
                f"{tensor.path}: tensor {name} is stored as {tensor.dtype}; supported types are "
                f"{', '.join(_PART_DTYPES)}."
            )
        try:
            with tensor.path.open("rb") as opened:
                opened.seek(tensor.offset)
                if self._reads is not None:
                    values, count = self._reads.read(opened, tensor.num_bytes)
                else:
                    values = torch.empty(tensor.num_bytes, dtype=torch.uint8)
                    count = opened.readinto(values.numpy().data)
        except OSError as error:
            raise _unreadable(tensor.path, error) from error
        if count != tensor.num_bytes:
            raise ModelFormatError(
                f"gave {count} of {tensor.num_bytes} bytes: the file changed while it was read.",
                file=str(tensor.path),
                field=name,
            )
        return values.view(_PART_DTYPES[tensor.dtype]).view(tensor.shape)

    def get_quantized(self, name: str) -> Quantized | None:
        """None: what several tensors mean together is read elsewhere."""
        return None  # what several tensors say together is weights/quantized.py's to read

    def release(self, name: str) -> None:
        """Nothing: what was read is the caller's."""
        pass  # what was read is the caller's


def _unreadable(path: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(f"{error.filename or path} cannot be read: {error.strerror}.")
