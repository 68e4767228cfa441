"""GGUF files that keep a latent layer's matrix as two stacks, one of them across: as one matrix.

llama.cpp absorbs the keys' half into queries and the values' half into the output. Here both come
from one matrix, whose rows are of each head its keys' and then its values'.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from cutaway.core.errors import ModelFormatError
from cutaway.quantize.scheme import Quantized
from cutaway.weights.source import GgufWeights

_KEYS, _VALUES, _BOTH = "attn_k_b.weight", "attn_v_b.weight", "attn_kv_b.weight"


def is_absorbed(names: Collection[str]) -> bool:
    """Whether a file keeps them so."""
    return any(name.endswith(_KEYS) for name in names)


class AbsorbedWeights:
    """Tensors of such a file, each pair of stacks as one matrix."""

    def __init__(self, stored: GgufWeights) -> None:
        self._stored = stored
        names = frozenset(stored.names())
        layers = {name.removesuffix(_KEYS) for name in names if name.endswith(_KEYS)}
        layers = {layer for layer in layers if layer + _VALUES in names}
        self._pairs = {layer + _BOTH: (layer + _KEYS, layer + _VALUES) for layer in layers}
        parts = {name for pair in self._pairs.values() for name in pair}
        self._names = (names - parts) | self._pairs.keys()

    @property
    def file(self) -> str:
        """What messages call it."""
        return self._stored.file

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; that of a joined one follows from its two parts.

        Raises: ModelFormatError where the parts do not fit each other.
        """
        if name not in self._pairs:
            return self._stored.shape(name)
        keys, values = (self._stored.shape(part) for part in self._pairs[name])
        if len(keys) != 3 or len(values) != 3 or (keys[0], keys[1]) != (values[0], values[2]):
            raise ModelFormatError(
                f"has shape {keys} and the values' {values}; they must be [heads, rank, size of "
                "keys] and [heads, size of values, rank].",
                file=self.file,
                field=self._pairs[name][0],
            )
        return keys[0] * (keys[2] + values[1]), keys[1]

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError unless it, or each part of a joined one, can be read."""
        for part in self._pairs.get(name, (name,)):
            self._stored.check(part)

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers; a joined one by heads, keys before values."""
        if name not in self._pairs:
            return self._stored.tensor(name)
        keys, values = (self._stored.tensor(part) for part in self._pairs[name])
        return torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)

    def get_quantized(self, name: str) -> Quantized | None:
        """A matrix as it is stored in fewer bits; None for a joined one."""
        return None if name in self._pairs else self._stored.get_quantized(name)

    def release(self, name: str) -> None:
        """Hold no memory for a tensor, or for the parts of a joined one."""
        for part in self._pairs.get(name, (name,)):
            self._stored.release(part)
