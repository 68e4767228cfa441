"""A matrix in blocks of a GGUF file, which the native layouts hold by its integers.

Sizes above 4 bits widen to bytes. Scales that a file computes (K types, IQ4_XS) are rounded to
float16, by at most one part in 2,048; everything else stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from cutaway.kernels.native import PackedWeight
from cutaway.quantize.packed import Packed


@dataclass(frozen=True)
class BlockMatrix:
    """type_name, rows and columns, stored bytes."""

    type_name: str
    shape: tuple[int, int]
    data: memoryview

    def pack(self, row_order: Tensor | None) -> Packed | None:
        """In a layout of the native kernels; None where they have none for these blocks."""
        if not PackedWeight.takes_blocks(self.type_name):
            return None
        weight = PackedWeight.from_blocks(
            self.data, self.type_name, shape=self.shape, row_order=row_order
        )
        return None if weight is None else Packed(weight)

    def keep(self, row_order: Tensor | None) -> nn.Module | None:
        """None: torch has no products of blocks, and unpacked numbers multiply faster."""
        return None  # torch has no products of blocks: unpacked once they multiply faster
