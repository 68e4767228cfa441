"""What stored weights can do, whatever their bits, and what reads those of a checkpoint."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from cutaway.quantize.packed import Packed


@runtime_checkable
class Weight(Protocol):
    """A matrix of N rows and K columns in some storage scheme."""

    @property
    def num_rows(self) -> int:
        """N."""
        ...

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N]."""
        ...

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows, for a tied embedding. Shapes: token_ids [T] -> [T, K]."""
        ...

    def dense(self) -> Tensor:
        """The matrix itself. Shapes: [N, K]."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, scales included."""
        ...


class Quantized(Protocol):
    """A stored matrix before anything is unpacked."""

    def pack(self, row_order: Tensor | None) -> Packed | None:
        """In a layout of the native kernels by its integers; None if it has to go through floats.

        Shapes: row_order [N]: row n of the result is row row_order[n] of what is stored.
        """
        ...

    def keep(self, row_order: Tensor | None) -> nn.Module | None:
        """A Weight for torch that unpacks at each use; None where it is better unpacked at once."""
        ...


class StoredParts(Protocol):
    """The tensors of one module in a checkpoint, by the last word of their names."""

    @property
    def module(self) -> str:
        """The module's name, for messages."""
        ...

    @property
    def file(self) -> str:
        """The file's name, for messages."""
        ...

    def has(self, part: str) -> bool:
        """Whether the checkpoint has that part."""
        ...

    def shape(self, part: str) -> tuple[int, ...]:
        """A part's shape, without reading it. Raises: ModelFormatError where it is absent."""
        ...

    def tensor(self, part: str) -> Tensor:
        """In the type in which it is stored. Raises: ModelFormatError where it is absent."""
        ...


class StoredMatrix(Quantized, Protocol):
    """One that also unpacks."""

    def dense(self) -> Tensor:
        """Shapes: [N, K] float32."""
        ...


class CheckpointFormat(Protocol):
    """How one method stores matrices: which tensors make up one, and what they mean."""

    @property
    def marks(self) -> tuple[str, ...]:
        """A module with a tensor of one of these names is quantized."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Every tensor that belongs to a quantized matrix, those of `marks` among them."""
        ...

    def shape(self, stored: StoredParts) -> tuple[int, int]:
        """Rows and columns of the matrix. Raises: ModelFormatError where parts contradict."""
        ...

    def read(self, stored: StoredParts) -> StoredMatrix:
        """The matrix as it is stored. Raises: ModelFormatError where parts contradict."""
        ...
