"""A weight in a packed layout of the native CPU kernels. It serves; it cannot be trained."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from cutaway.kernels import native
from cutaway.kernels.linear import linear
from cutaway.kernels.native import Kind, PackedWeight

_FLOATS: Final[Mapping[torch.dtype, Kind]] = {
    torch.float32: Kind.F32,
    torch.float16: Kind.F16,
    torch.bfloat16: Kind.BF16,
}


_NUMBERS_AT_ONCE = 2**20  # unpacked between two steps of what waits beside it


class Packed(nn.Module):
    """Matrix in panels; see native/kernels/panel.h.

    The native kernels read packed itself. The methods here are the plain twin, but for
    multiply_packed: they unpack to float32 first, and leave activations as they are.

    Shapes: [N, K].
    """

    def __init__(self, packed: PackedWeight) -> None:
        super().__init__()
        self.packed = packed
        self.unpacked: Tensor | None = None  # while many products by modules follow

    @classmethod
    def of(cls, matrix: Tensor, *, row_order: Tensor | None, widens: bool) -> Packed:
        """Pack a matrix of floats in its own type, or rounded to 8 bits per group of 32."""
        kind = Kind.Q8 if widens and matrix.shape[1] % 32 == 0 else _FLOATS.get(matrix.dtype)
        if kind is None:
            matrix, kind = matrix.to(torch.float32), Kind.F32
        return cls(PackedWeight.from_matrix(matrix, kind, row_order=row_order))

    def take(self, rows: Tensor) -> Packed:
        """Some rows as a matrix of its own, the same bits. Shapes: rows [n] int64 -> [n, K]."""
        return Packed(self.packed.take(rows))

    @property
    def num_rows(self) -> int:
        """Rows of the matrix, N."""
        return self.packed.num_rows

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N]."""
        matrix = self.dense() if self.unpacked is None else self.unpacked
        return linear(x, matrix.to(x.dtype))

    def multiply_packed(self, x: Tensor) -> Tensor:
        """The same product by the native kernels, as a step makes it: nothing is unpacked.

        Shapes: x [T, K] -> [T, N] float32.
        """
        out = torch.empty(len(x), self.num_rows)
        product = native.linear(x.to(torch.float32).contiguous(), [self.packed], out=out)
        native.run(product, native.NativeStep.of_rows(len(x)))
        return out

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows, for a tied embedding. Shapes: token_ids [T] -> [T, K]."""
        return self.packed.rows(token_ids)

    def tiles(self, num_numbers: int) -> Iterator[Tensor]:
        """The matrix, about so many numbers at a time. Shapes: [n, K] each."""
        return self.packed.tiles(num_numbers)

    def dense(self) -> Tensor:
        """The matrix itself. Shapes: [N, K]."""
        return self.packed.dense()

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, scales included."""
        return self.packed.num_bytes


class ServingPacked(Packed):
    """The same for a module that is called as it is: its products are the native kernels' own.

    Activations are rounded to 8 bits in them, as in a recorded step.
    """

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N] float32."""
        flat = x.reshape(-1, x.shape[-1])
        return self.multiply_packed(flat).view(*x.shape[:-1], self.num_rows)


@contextmanager
def unpack_once(model: nn.Module, *, most_bytes: int) -> Generator[Iterator[None]]:
    """For many products by modules: packed matrices are unpacked once, not at each of them.

    Gives what unpacks them, one after the other; until it is through, the rest work as before.

    most_bytes: that they may take together; those for which nothing is left stay as they are.
    """
    kept: list[Packed] = []
    try:
        yield _unpacking(model, kept, most_bytes=most_bytes)
    finally:
        freed = [part.unpacked for part in kept]
        for part in kept:
            part.unpacked = None
        threading.Thread(target=_free, args=(freed,), name="cutaway-free", daemon=True).start()


def _own_pages(packed: PackedWeight) -> Tensor:
    """Room for the matrix where freeing gives memory back: of 500 MB malloc kept 400."""
    shape = (packed.num_rows, packed.num_columns)
    room = torch.frombuffer(mmap.mmap(-1, 4 * shape[0] * shape[1]), dtype=torch.float32)
    return room.view(shape)


def _free(matrices: list[Tensor | None]) -> None:
    """One after the other: the system takes 0.1 s for 500 MB, which no step shall wait for."""
    while matrices:
        matrices.pop()
        time.sleep(0.001)


def _unpacking(model: nn.Module, kept: list[Packed], *, most_bytes: int) -> Iterator[None]:
    for part in model.modules():
        if isinstance(part, Packed) and part.unpacked is None:
            num_bytes = 4 * part.packed.num_rows * part.packed.num_columns
            if num_bytes <= most_bytes:
                most_bytes -= num_bytes
                matrix = _own_pages(part.packed)
                for _ in part.packed.tiles(_NUMBERS_AT_ONCE, matrix):
                    yield  # a vocabulary's matrix whole takes 0.1 to 0.25 s, its pages included
                part.unpacked = matrix
                kept.append(part)
