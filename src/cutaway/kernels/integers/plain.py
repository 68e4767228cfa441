"""Products with integers that have a scale and a zero for groups of columns, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.kernels.linear import plain as linear


def multiply(
    x: Tensor, quants: Tensor, quant_scale: Tensor, zero: Tensor, *, has_nibbles: bool
) -> Tensor:
    """x times the transposed matrix quant_scale * (quants - zero), unpacked to the type of x.

    Shapes: x [..., K]; quants [N, K] bytes, or [N, K / 2] where each has two columns, the even
    one in the low nibble; quant_scale [N, G]; zero [N, G] or [1, 1] -> [..., N].
    """
    return linear.linear(x, unpack(separate(quants, has_nibbles), quant_scale, zero).to(x.dtype))


def unpack(quants: Tensor, quant_scale: Tensor, zero: Tensor) -> Tensor:
    """quant_scale * (quants - zero) in float32. Shapes: quants [N, K] bytes -> [N, K]."""
    rows, columns = quants.shape
    scale, zero = quant_scale.float(), zero.float()
    grouped = quants.view(rows, scale.shape[1], columns // scale.shape[1]).float()
    return ((grouped - zero[:, :, None]) * scale[:, :, None]).view(rows, columns)


def separate(quants: Tensor, has_nibbles: bool) -> Tensor:
    """One byte for each integer. Shapes: [N, K] or [N, K / 2] -> [N, K]."""
    return torch.stack((quants & 15, quants >> 4), -1).flatten(1) if has_nibbles else quants
