"""Float matrices rounded to the nearest number of a scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.quantize.floats8 import E4M3, E4M3_LARGEST, Float8Matrix
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.schemes import Scheme


def round_matrix(matrix: Tensor, scheme: Scheme) -> IntegerMatrix | Float8Matrix:
    """Shapes: matrix [N, K], K a multiple of the group size."""
    if scheme.kind == "floats":
        return rounded_floats(matrix)
    scale, zero = grid(matrix.float().view(len(matrix), -1, scheme.group_size), scheme)
    quants = nearest(
        matrix.float(),
        scale.repeat_interleave(scheme.group_size, 1),
        zero.repeat_interleave(scheme.group_size, 1),
        scheme.bits,
    )
    if scheme.is_symmetric:
        zero = zero[:1, :1]
    return IntegerMatrix(scheme.bits, quants, scale, zero)


def rounded_floats(matrix: Tensor) -> Float8Matrix:
    """To e4m3 with a scale for each row, so that its largest number becomes the largest of e4m3."""
    matrix = matrix.float()
    scale = matrix.abs().amax(1, keepdim=True) / E4M3_LARGEST
    values = matrix / torch.where(scale > 0, scale, torch.ones_like(scale))
    values = values.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(E4M3)
    return Float8Matrix(values, scale, (1, matrix.shape[1]))


def grid(groups: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Scale and zero of each group: the narrowest grid over its numbers, and over zero.

    Scales are float16, so that no layout has to round them again.
    Shapes: groups [N, G, columns] float32 -> [N, G] float16, [N, G] int16.
    """
    levels, middle = (1 << scheme.bits) - 1, 1 << (scheme.bits - 1)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if scheme.is_symmetric:
        # The negative side has one step more; half a step of the positive side is given up.
        scale = torch.maximum(-low, high) / (levels / 2)
        zero = torch.full_like(scale, middle)
    else:
        scale = (high - low) / levels
        zero = (-low / torch.where(scale > 0, scale, torch.ones_like(scale))).round()
    return scale.half(), zero.to(torch.int16)


def nearest(matrix: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The integers next to numbers, for scales that may be 0. Shapes: all the same -> uint8."""
    scale = scale.float()
    quotient = matrix / torch.where(scale > 0, scale, torch.ones_like(scale))
    quotient = torch.where(scale > 0, quotient, torch.zeros_like(quotient))
    return (quotient.round() + zero).clamp(0, (1 << bits) - 1).to(torch.uint8)
