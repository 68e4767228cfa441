"""Checkpoints of AWQ: 4 bits, packed along the rows, each word in an order of its own.

Source: Lin et al. 2024, arXiv 2306.00978; the layout is "gemm" of AutoAWQ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.quantize.checkpoints.packed_words import unpack_words
from cutaway.quantize.checkpoints.part_faults import check_shape, contradiction
from cutaway.quantize.checkpoints.quantization_config import Settings
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.scheme import StoredParts

_BITS = 4
_ROWS_PER_WORD = 8
# Where in a word, lowest nibble first, each of its eight rows stands.
_PLACE_OF_ROW = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Awq:
    """Shapes: qweight [K, N / 8] int32, qzeros [G, N / 8] int32, scales [G, N]."""

    group_size: int | None  # None: one group for all columns

    marks = ("qweight",)
    parts = ("qweight", "qzeros", "scales")

    @classmethod
    def of(cls, settings: Settings) -> Awq:
        """Read the method's settings. Raises: UnsupportedModelError for one it cannot read."""
        if settings.integer("bits", _BITS) != _BITS:
            raise settings.refuse("bits", "AWQ has 4")
        if settings.text("version", "gemm").lower() != "gemm":
            raise settings.refuse("version", "gemm can be read")
        size = settings.integer("group_size", 128)
        if size != -1 and size < 1:
            raise settings.refuse("group_size", "it must be -1 or at least 1")
        return cls(None if size == -1 else size)

    def shape(self, stored: StoredParts) -> tuple[int, int]:
        """Rows and columns of the matrix. Raises: ModelFormatError where parts contradict."""
        columns, words = check_shape(stored, "qweight", 2)
        size = self.group_size or columns
        if columns % size:
            raise contradiction(stored, "qweight", f"columns in groups of {size}")
        groups, rows = columns // size, words * _ROWS_PER_WORD
        wanted = {"scales": (groups, rows)}
        if stored.has("qzeros"):
            wanted["qzeros"] = (groups, words)
        for part, shape in wanted.items():
            if stored.shape(part) != shape:
                raise contradiction(stored, part, shape)
        return rows, columns

    def read(self, stored: StoredParts) -> IntegerMatrix:
        """The matrix as it is stored.

        Raises: ModelFormatError where parts contradict.
        """
        self.shape(stored)
        if stored.has("qzeros"):
            zero = _rows_in_order(stored.tensor("qzeros")).to(torch.int16)
        else:
            zero = torch.full((1, 1), 1 << (_BITS - 1), dtype=torch.int16)
        scales = stored.tensor("scales").T.contiguous()
        return IntegerMatrix(_BITS, _rows_in_order(stored.tensor("qweight")), scales, zero)


def _rows_in_order(words: Tensor) -> Tensor:
    """Shapes: [K, N / 8] int32 -> [N, K] uint8."""
    by_place = unpack_words(words, _BITS, dim=1).view(len(words), -1, _ROWS_PER_WORD)
    return by_place[:, :, list(_PLACE_OF_ROW)].flatten(1).T.contiguous()
