"""Checkpoints of 8-bit floats (e4m3) with a scale for each block of the matrix, or one for all.

Source: DeepSeek-AI 2024, arXiv 2412.19437, section 3.3; the names are those of its checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.quantize.checkpoints.part_faults import check_shape, contradiction
from cutaway.quantize.checkpoints.quantization_config import Settings
from cutaway.quantize.floats8 import Float8Matrix
from cutaway.quantize.scheme import StoredParts


@dataclass(frozen=True)
class Fp8:
    """Shapes: weight [N, K] float8, weight_scale_inv [N / rows, K / columns] rounded up, which is
    multiplied by for all its name; or weight_scale, one number.
    """

    block: tuple[int, int] | None

    marks = ("weight_scale_inv", "weight_scale")
    # Scales of activations are found when the model runs.
    parts = ("weight", "weight_scale_inv", "weight_scale", "input_scale", "activation_scale")

    @classmethod
    def of(cls, settings: Settings) -> Fp8:
        """Read the method's settings. Raises: UnsupportedModelError for one it cannot read."""
        sizes = settings.sizes("weight_block_size")
        if not sizes:
            return cls(None)
        if len(sizes) != 2 or min(sizes) < 1:
            raise settings.refuse("weight_block_size", "it must be two sizes of at least 1")
        return cls((sizes[0], sizes[1]))

    def shape(self, stored: StoredParts) -> tuple[int, int]:
        """Rows and columns of the matrix. Raises: ModelFormatError where parts contradict."""
        rows, columns = check_shape(stored, "weight", 2)
        part, wanted = self._scale(rows, columns)
        if not stored.has(part) or stored.shape(part) not in wanted:
            raise contradiction(stored, part, wanted[0])
        return rows, columns

    def read(self, stored: StoredParts) -> Float8Matrix:
        """The matrix as it is stored.

        Raises: ModelFormatError where parts contradict.
        """
        rows, columns = self.shape(stored)
        part, _ = self._scale(rows, columns)
        scale = stored.tensor(part)
        if self.block is None:
            return Float8Matrix(stored.tensor("weight"), scale.reshape(1, 1), (rows, columns))
        return Float8Matrix(stored.tensor("weight"), scale, self.block)

    def _scale(self, rows: int, columns: int) -> tuple[str, tuple[tuple[int, ...], ...]]:
        if self.block is None:
            return "weight_scale", ((), (1,), (1, 1))
        return "weight_scale_inv", ((-(-rows // self.block[0]), -(-columns // self.block[1])),)
