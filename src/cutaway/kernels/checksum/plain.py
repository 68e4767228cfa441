"""The checksum of a row in PyTorch: the definition that every other form must equal."""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIER = 0x9E3779B1  # 2^32 / golden ratio, odd: neighbours get unlike factors
_LOW = 0xFFFFFFFF


def checksum(rows: Tensor) -> Tensor:
    """Sum of bits(x_i) * ((i * 0x9E3779B1 mod 2^32) | 1) modulo 2^64.

    Whole numbers, so the order of summation plays no part. Factors are odd and below 2^32: a
    change of one entry, whichever bits, always changes the sum.

    Shapes: rows [R, V] float32 -> [R, 2] int64: the low and the high 32 bits.
    """
    assert rows.dtype == torch.float32, f"rows are {rows.dtype}"
    places = torch.arange(rows.shape[1], dtype=torch.int64, device=rows.device)
    factors = (places * _MULTIPLIER & _LOW) | 1
    bits = rows.contiguous().view(torch.int32).to(torch.int64) & _LOW
    total = (bits * factors).sum(dim=1)  # int64 wraps as unsigned integers do
    return torch.stack([total & _LOW, total >> 32 & _LOW], dim=1)
