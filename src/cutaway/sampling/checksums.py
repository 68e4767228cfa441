"""Checksums of rows of logits, as the sampler notes them beside what it draws."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from cutaway.kernels.checksum import checksum

# Of 49,152 entries: what is made on the way stays in a processor's cache, a quarter of the time.
_ROWS = 8


def checksums(logits: Tensor) -> list[int]:
    """64 bits per raw row, taken as float32. Shapes: [R, V] -> R numbers."""
    size = _ROWS if logits.is_cpu else max(1, len(logits))
    starts = range(0, max(1, len(logits)), size)
    told = torch.cat([checksum(logits[at : at + size].float()) for at in starts])
    pairs = cast("list[list[int]]", told.tolist())
    return [low | high << 32 for low, high in pairs]
