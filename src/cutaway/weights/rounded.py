"""A source whose matrices are rounded to one of our own schemes as they are read.

Maps inside layers are rounded; tables of the vocabulary, routers, norms and biases stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.weight_targets import Target
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.scheme import Quantized
from cutaway.quantize.schemes import Scheme
from cutaway.weights.source import WeightSource


class RoundedWeights:
    """Tensors of another source, in fewer bits.

    Raises: UnsupportedModelError naming a matrix whose columns are no multiple of the group.
    """

    def __init__(self, source: WeightSource, targets: Mapping[str, Target], scheme: Scheme) -> None:
        self._source = source
        self._scheme = scheme
        self._chosen = frozenset(matrices_of(source, targets))
        for name in self._chosen:
            columns = source.shape(name)[1]
            if scheme.group_size and columns % scheme.group_size:
                raise UnsupportedModelError(
                    f"{source.file}: {name} has {columns} columns, which are no multiple of the "
                    f"group of {scheme.group_size}. Set quant to a scheme with smaller groups, "
                    "or to fp8."
                )

    @property
    def file(self) -> str:
        """What messages call it."""
        return self._source.file

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, rows first, without reading it."""
        return self._source.shape(name)

    def check(self, name: str) -> None:
        """Raise UnsupportedModelError, naming the tensor, unless its stored type can be read."""
        self._source.check(name)

    def tensor(self, name: str) -> Tensor:
        """A tensor as floating-point numbers; a chosen one after rounding."""
        stored = self._source.tensor(name)
        return round_matrix(stored, self._scheme).dense() if name in self._chosen else stored

    def get_quantized(self, name: str) -> Quantized | None:
        """A chosen matrix rounded by the scheme; any other as its source has it."""
        if name not in self._chosen:
            return self._source.get_quantized(name)
        return round_matrix(self._source.tensor(name), self._scheme)

    def release(self, name: str) -> None:
        """Hold no memory for a tensor that was read; it can be read again."""
        self._source.release(name)


def matrices_of(source: WeightSource, targets: Mapping[str, Target]) -> list[str]:
    """Names of the maps inside layers, where most of a model's weights are."""
    return [
        name
        for name, target in targets.items()
        if name in source.names()
        and len(target.shape) == 2
        and (".segments." in target.parameter or ".experts." in target.parameter)
        and target.parameter.endswith(".weight")
        and not target.is_transposed
    ]
