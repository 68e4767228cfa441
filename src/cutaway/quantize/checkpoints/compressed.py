"""Checkpoints of compressed-tensors: packed or plain integers, and 8-bit floats.

What a module holds tells how to read it, so that a checkpoint may mix them. Scales of activations
are left aside: activations keep their own precision.
Source: the compressors of vllm-project/compressed-tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.core.errors import UnsupportedModelError
from cutaway.quantize.checkpoints.packed_words import WORD_BITS, unpack_words
from cutaway.quantize.checkpoints.part_faults import check_shape, contradiction
from cutaway.quantize.checkpoints.quantization_config import Settings
from cutaway.quantize.floats8 import E4M3, Float8Matrix
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.scheme import StoredMatrix, StoredParts

_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "dense",
)


@dataclass(frozen=True)
class CompressedTensors:
    """block: rows and columns of a scale, where scales are by block.

    Shapes: weight_packed [N, K * bits / 32] int32 or weight [N, K] int8 or float8; weight_scale
    [N, G], [N, 1] or [1]; weight_zero_point like the scale, packed along the rows where the
    weight is packed; weight_shape [2]; weight_g_idx [K].
    """

    block: tuple[int, int] | None = None

    marks = ("weight_scale",)
    parts = (
        *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape"),
        *("weight_g_idx", "input_scale", "input_zero_point", "output_scale", "output_zero_point"),
        *("input_global_scale", "k_scale", "v_scale"),
    )

    @classmethod
    def of(cls, settings: Settings) -> CompressedTensors:
        """Read the method's settings. Raises: UnsupportedModelError for one it cannot read."""
        if settings.text("format", "dense") not in _FORMATS:
            raise settings.refuse("format", f"{', '.join(_FORMATS)} can be read")
        if settings.text("quantization_status", "compressed") not in ("compressed", "frozen"):
            raise settings.refuse("quantization_status", "compressed weights can be read")
        if settings.inner("sparsity_config").text("format", "dense") != "dense":
            raise settings.refuse("sparsity_config", "sparse weights cannot be read")
        groups = settings.inner("config_groups").each().values()
        blocks = {group.inner("weights").sizes("block_structure") for group in groups} - {()}
        if not blocks:
            return cls()
        block = blocks.pop()
        if blocks or len(block) != 2 or min(block) < 1:
            raise settings.refuse("config_groups", "blocks of one size, rows and columns, are read")
        return cls((block[0], block[1]))

    def shape(self, stored: StoredParts) -> tuple[int, int]:
        """Rows and columns of the matrix. Raises: ModelFormatError where parts contradict."""
        if not stored.has("weight_packed"):
            rows, columns = check_shape(stored, "weight", 2)
        else:
            rows, words = check_shape(stored, "weight_packed", 2)
            shape = stored.tensor("weight_shape")
            if shape.shape != (2,) or int(shape[0]) != rows or int(shape[1]) < 1:
                raise contradiction(stored, "weight_packed", "another number of rows")
            columns = int(shape[1])
            if words not in {-(-columns * bits // WORD_BITS) for bits in (2, 4, 8)}:
                raise contradiction(stored, "weight_packed", "2, 4 or 8 bits a value")
        self._check_scale(stored, rows, columns)
        return rows, columns

    def read(self, stored: StoredParts) -> StoredMatrix:
        """The matrix as it is stored.

        Raises: ModelFormatError where parts contradict.
        """
        rows, columns = self.shape(stored)
        scale = stored.tensor("weight_scale")
        if scale.numel() == 1:
            scale = scale.reshape(1, 1)
        elif scale.ndim == 1:
            scale = scale[:, None]
        if stored.has("weight_packed"):
            return self._packed(stored, scale, rows, columns)
        values = stored.tensor("weight")
        if values.dtype == E4M3:
            block = self.block or (1, columns // scale.shape[1])
            return Float8Matrix(values, scale, block)
        if values.dtype != torch.int8 or self.block is not None:
            raise UnsupportedModelError(
                f"{stored.file}: {stored.module}.weight is stored as {values.dtype} beside a "
                "scale; int8 and float8 (e4m3) can be read."
            )
        zero = torch.zeros(1, 1, dtype=torch.int16)
        if stored.has("weight_zero_point"):
            zero = stored.tensor("weight_zero_point").to(torch.int16).reshape(scale.shape)
        quants = (values.view(torch.uint8)) ^ 128
        return self._integers(stored, 8, quants, scale, zero + 128)

    def _packed(self, stored: StoredParts, scale: Tensor, rows: int, columns: int) -> IntegerMatrix:
        words = stored.tensor("weight_packed")
        bits = next(b for b in (8, 4, 2) if -(-columns * b // WORD_BITS) == words.shape[1])
        quants = unpack_words(words, bits, dim=1)[:, :columns].contiguous()
        zero = torch.full((1, 1), 1 << (bits - 1), dtype=torch.int16)
        if stored.has("weight_zero_point") and scale.numel() > 1:
            wanted = (-(-rows * bits // WORD_BITS), scale.shape[1])
            if stored.shape("weight_zero_point") != wanted:
                raise contradiction(stored, "weight_zero_point", wanted)
            zeros = unpack_words(stored.tensor("weight_zero_point"), bits, dim=0)[:rows]
            zero = zeros.to(torch.int16).contiguous()
        elif stored.has("weight_zero_point"):  # one for all is not packed
            zero = zero + stored.tensor("weight_zero_point").to(torch.int16).reshape(1, 1)
        return self._integers(stored, bits, quants, scale, zero)

    def _integers(
        self, stored: StoredParts, bits: int, quants: Tensor, scale: Tensor, zero: Tensor
    ) -> IntegerMatrix:
        rows, columns = quants.shape
        groups: Tensor | None = None
        if stored.has("weight_g_idx"):
            groups = stored.tensor("weight_g_idx").to(torch.int64)
            if int(groups.min()) < 0 or int(groups.max()) >= scale.shape[1]:
                raise contradiction(stored, "weight_g_idx", f"groups below {scale.shape[1]}")
            if torch.equal(groups, torch.arange(columns) // (columns // scale.shape[1])):
                groups = None
        scale = scale.expand(rows, -1)
        zero = zero if zero.numel() == 1 else zero.expand(rows, -1)
        return IntegerMatrix(bits, quants, scale, zero, groups)

    def _check_scale(self, stored: StoredParts, rows: int, columns: int) -> None:
        shape = stored.shape("weight_scale")
        if self.block is not None and not stored.has("weight_packed"):
            wanted = (-(-rows // self.block[0]), -(-columns // self.block[1]))
            if shape != wanted:
                raise contradiction(stored, "weight_scale", wanted)
        elif shape not in ((), (1,), (1, 1), (rows,)):
            if len(shape) != 2 or shape[0] != rows or columns % max(shape[1], 1):
                raise contradiction(stored, "weight_scale", f"one for each of {rows} rows")
        if stored.has("weight_g_idx") and stored.shape("weight_g_idx") != (columns,):
            raise contradiction(stored, "weight_g_idx", (columns,))
