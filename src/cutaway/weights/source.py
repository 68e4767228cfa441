"""Where stored tensors come from, whatever the format: the protocol, and GGUF files."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from cutaway.host.gguf_file import GgufFile
from cutaway.quantize.gguf.gguf_packed import BlockMatrix
from cutaway.quantize.gguf.gguf_tensors import PLAIN, check_supported, unpack
from cutaway.quantize.scheme import Quantized


class WeightSource(Protocol):
    """Named tensors that can be looked at before they are read."""

    @property
    def file(self) -> str:
        """What messages call it."""
        ...

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, rows first, without reading it."""
        ...

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError, naming the tensor, unless its stored type can be read."""
        ...

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers, in memory of its own."""
        ...

    def get_quantized(self, name: str) -> Quantized | None:
        """A matrix as it is stored in fewer bits; None for plain numbers.

        Of a stack all matrices one below the other, each with its outputs as rows.
        """
        ...

    def release(self, name: str) -> None:
        """Hold no memory for a tensor that was read; it can be read again."""
        ...


class GgufWeights:
    """Tensors of a GGUF file, blocks unpacked to float32."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf

    @property
    def file(self) -> str:
        """What messages call it."""
        return self._gguf.file

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._gguf.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, rows first, without reading it."""
        return self._gguf.tensors[name].shape

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError, naming the tensor, unless its stored type can be read."""
        check_supported(self._gguf.tensors[name], file=self.file)

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers, in memory of its own."""
        return unpack(self._gguf, name)

    def get_quantized(self, name: str) -> Quantized | None:
        """A matrix or a stack in its blocks; None for plain numbers and for vectors."""
        tensor = self._gguf.tensors[name]
        if tensor.type in PLAIN or len(tensor.shape) not in (2, 3):
            return None
        *rows, columns = tensor.shape
        return BlockMatrix(tensor.type, (math.prod(rows), columns), self._gguf.data(name))

    def release(self, name: str) -> None:
        """Hold no memory for a tensor that was read; it can be read again."""
        self._gguf.release(name)
