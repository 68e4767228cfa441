"""Checkpoints of GPTQ: integers of 2, 4 or 8 bits packed along the columns, zeros along the rows.

Source: Frantar et al. 2023, arXiv 2210.17323; the layout is that of AutoGPTQ and GPTQModel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.quantize.checkpoints.packed_words import WORD_BITS, unpack_words
from cutaway.quantize.checkpoints.part_faults import check_shape, contradiction
from cutaway.quantize.checkpoints.quantization_config import Settings
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.scheme import StoredParts


@dataclass(frozen=True)
class Gptq:
    """zero_shift: what is added to stored zeros; the first version of the format keeps them one
    lower, and wraps them around.

    Shapes: qweight [K * bits / 32, N] int32, qzeros [G, N * bits / 32] int32, scales [G, N],
    g_idx [K] int32.
    """

    bits: int
    group_size: int | None  # None: one group for all columns
    zero_shift: int

    marks = ("qweight",)
    parts = ("qweight", "qzeros", "scales", "g_idx")

    @classmethod
    def of(cls, settings: Settings) -> Gptq:
        """Read the method's settings. Raises: UnsupportedModelError for one it cannot read."""
        bits, group_size = settings.integer("bits"), settings.integer("group_size", 128)
        if bits not in (2, 4, 8):
            raise settings.refuse("bits", "2, 4 and 8 can be read")
        if group_size != -1 and group_size < 1:
            raise settings.refuse("group_size", "it must be -1 or at least 1")
        if settings.has("dynamic"):
            raise settings.refuse("dynamic", "settings that differ by module cannot be read")
        version = settings.text("checkpoint_format", "gptq")
        if version not in ("gptq", "gptq_v2"):
            raise settings.refuse("checkpoint_format", "gptq and gptq_v2 can be read")
        size = None if group_size == -1 else group_size
        return cls(bits, size, zero_shift=1 if version == "gptq" else 0)

    def shape(self, stored: StoredParts) -> tuple[int, int]:
        """Rows and columns of the matrix. Raises: ModelFormatError where parts contradict."""
        per_word = WORD_BITS // self.bits
        words, rows = check_shape(stored, "qweight", 2)
        columns = words * per_word
        groups = 1 if self.group_size is None else -(-columns // self.group_size)
        for part, wanted in (
            ("qzeros", (groups, -(-rows // per_word))),
            ("scales", (groups, rows)),
        ):
            if stored.shape(part) != wanted:
                raise contradiction(stored, part, wanted)
        if stored.has("g_idx") and stored.shape("g_idx") != (columns,):
            raise contradiction(stored, "g_idx", (columns,))
        return rows, columns

    def read(self, stored: StoredParts) -> IntegerMatrix:
        """The matrix as it is stored.

        Raises: ModelFormatError where parts contradict.
        """
        rows, columns = self.shape(stored)
        quants = unpack_words(stored.tensor("qweight"), self.bits, dim=0).T.contiguous()
        zeros = unpack_words(stored.tensor("qzeros"), self.bits, dim=1)[:, :rows]
        zeros = (zeros.to(torch.int16) + self.zero_shift) & ((1 << self.bits) - 1)
        scales = stored.tensor("scales").T.contiguous()
        return IntegerMatrix(
            self.bits, quants, scales, zeros.T.contiguous(), self._groups(stored, columns)
        )

    def _groups(self, stored: StoredParts, columns: int) -> Tensor | None:
        """None where the order of activations was left as it is."""
        size = self.group_size or columns
        regular = torch.arange(columns) // size
        if not stored.has("g_idx"):
            groups = regular
        else:
            groups = stored.tensor("g_idx").to(torch.int64)
            last = int(regular[-1])
            if int(groups.min()) < 0 or int(groups.max()) > last:
                raise contradiction(stored, "g_idx", f"groups from 0 to {last}")
        is_regular = columns % size == 0 and torch.equal(groups, regular)
        return None if is_regular else groups
