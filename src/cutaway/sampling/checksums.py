"""Checksums of rows of logits, as the sampler notes them beside what it draws."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from cutaway.kernels.checksum import checksum


def checksums(logits: Tensor) -> list[int]:
    """64 bits per raw row, taken as float32. Shapes: [R, V] -> R numbers."""
    pairs = cast("list[list[int]]", checksum(logits.float()).tolist())
    return [low | high << 32 for low, high in pairs]
