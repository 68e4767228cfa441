"""A checkpoint's quantized matrices under the names that the model gives them.

It finds which stored tensors make up a matrix; what they mean is the method's of quantize/.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from cutaway.core.errors import ModelFormatError
from cutaway.quantize.scheme import CheckpointFormat, StoredMatrix
from cutaway.weights.files.safetensors import SafetensorsWeights

_WEIGHT = ".weight"


@dataclass(frozen=True)
class _Parts:
    """The tensors of one module."""

    stored: SafetensorsWeights
    module: str

    @property
    def file(self) -> str:
        return self.stored.file

    def has(self, part: str) -> bool:
        return f"{self.module}.{part}" in self.stored.names()

    def shape(self, part: str) -> tuple[int, ...]:
        return self.stored.shape(self._name(part))

    def tensor(self, part: str) -> Tensor:
        return self.stored.part(self._name(part))

    def _name(self, part: str) -> str:
        name = f"{self.module}.{part}"
        if not self.has(part):
            raise ModelFormatError(
                "is missing; a quantized matrix needs it. The checkpoint is incomplete, or its "
                "quantization_config names another method.",
                file=self.file,
                field=name,
            )
        return name


class QuantizedWeights:
    """Tensors of a folder, matrices of quantized modules as one tensor each.

    spare: biases of zeros beside quantized matrices, which some tools store for every module: a
    model without biases may leave them.
    """

    def __init__(self, stored: SafetensorsWeights, checkpoint: CheckpointFormat) -> None:
        self._stored = stored
        self._checkpoint = checkpoint
        names = frozenset(stored.names())
        modules = {
            name.removesuffix(f".{mark}")
            for name in names
            for mark in checkpoint.marks
            if name.endswith(f".{mark}")
        }
        self._modules = {module + _WEIGHT: _Parts(stored, module) for module in sorted(modules)}
        parts = {f"{module}.{part}" for module in modules for part in checkpoint.parts}
        self._names = (names - parts) | self._modules.keys()
        biases = (f"{module}.bias" for module in sorted(modules))
        self.spare = frozenset(b for b in biases if b in names and not stored.tensor(b).any())

    @property
    def file(self) -> str:
        """What messages call it."""
        return self._stored.file

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; that of a quantized matrix follows from its parts."""
        parts = self._modules.get(name)
        return self._stored.shape(name) if parts is None else self._checkpoint.shape(parts)

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError unless a plain tensor's type can be read."""
        if name not in self._modules:
            self._stored.check(name)

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers; a quantized matrix is unpacked."""
        matrix = self.get_quantized(name)
        return self._stored.tensor(name) if matrix is None else matrix.dense()

    def get_quantized(self, name: str) -> StoredMatrix | None:
        """A quantized matrix as its method stores it; None for a plain tensor."""
        parts = self._modules.get(name)
        return None if parts is None else self._checkpoint.read(parts)

    def release(self, name: str) -> None:
        """Nothing: what was read is the caller's."""
        pass  # what was read is the caller's
