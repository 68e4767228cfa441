"""Integer matrices as blocks of a GGUF file: Q8_0, Q4_0 or Q4_1, the same numbers.

The offset of Q4_1 is rounded to float16; nothing else changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.schemes import Scheme

_COLUMNS = 32  # of a block of these three types


def block_type(scheme: Scheme) -> str:
    """The type that holds a scheme. Raises: ConfigError when none does."""
    types = {(8, True): "Q8_0", (4, True): "Q4_0", (4, False): "Q4_1"}
    name = types.get((scheme.bits, scheme.is_symmetric))
    if scheme.kind != "integers" or scheme.group_size != _COLUMNS or name is None:
        raise ConfigError(
            "this scheme has no type in GGUF files; int8 becomes Q8_0, int4 Q4_1 and int4-sym "
            "Q4_0, in groups of 32. Choose one of them, or write a folder."
        )
    return name


def blocks_of(matrix: IntegerMatrix) -> bytes:
    """Stored bytes of the type that block_type names. Shapes: groups of 32 columns."""
    quants = matrix.quants.view(-1, _COLUMNS)
    parts = [matrix.quant_scale.half().reshape(-1, 1).view(torch.uint8)]
    if matrix.bits == 8:
        return _joined([*parts, quants ^ 128])
    if matrix.zero.numel() > 1:
        offset = -matrix.quant_scale.half().float() * matrix.zero
        parts.append(offset.half().reshape(-1, 1).view(torch.uint8))
    return _joined([*parts, quants[:, :16] | (quants[:, 16:] << 4)])


def _joined(parts: list[Tensor]) -> bytes:
    return torch.cat(parts, dim=1).numpy().tobytes()
