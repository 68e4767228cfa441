"""Rounding in which later columns make up for the errors of earlier ones, by what inputs look like.

It knows matrices and the products of their inputs, not where inputs come from.
Source: Frantar et al. 2023, arXiv 2210.17323, algorithm 1; columns stay in their own order.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.rounding import grid, nearest
from cutaway.quantize.schemes import Scheme

_DAMPING = 0.01  # of the mean of the diagonal, as in the paper
_BLOCK = 128  # columns that are settled before the rest is brought up to date


def inverse_root(products: Tensor) -> Tensor:
    """The upper triangular root of the inverse of products, damped so that there is one.

    Shapes: products [K, K] float32, the sum over inputs x of x times x transposed.
    """
    diagonal = products.diagonal()
    damped = products + torch.diag(
        torch.full_like(diagonal, _DAMPING * float(diagonal.mean()) + 1e-12)
        # An input that is always 0 says nothing of its column: it is rounded by itself.
        + (diagonal == 0)
    )
    lower = cast(Tensor, torch.linalg.cholesky(damped.double()))
    return cast(Tensor, torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)).float()


def compensate(matrix: Tensor, root: Tensor, scheme: Scheme) -> IntegerMatrix:
    """Integers whose products with such inputs are nearer than those of plain rounding.

    Shapes: matrix [N, K], K a multiple of the group size; root [K, K] of inverse_root.
    """
    left = matrix.float().clone()  # columns that are not settled yet
    rows, columns = left.shape
    quants = torch.empty(rows, columns, dtype=torch.uint8)
    scales: list[Tensor] = []
    zeros: list[Tensor] = []
    for start in range(0, columns, _BLOCK):
        end = min(start + _BLOCK, columns)
        errors = torch.empty(rows, end - start)
        for column in range(start, end):
            if column % scheme.group_size == 0:
                group = left[:, column : column + scheme.group_size]
                scale, zero = grid(group[:, None], scheme)
                scales.append(scale)
                zeros.append(zero)
            scale, zero = scales[-1][:, 0], zeros[-1][:, 0]
            chosen = nearest(left[:, column], scale, zero, scheme.bits)
            quants[:, column] = chosen
            value = scale.float() * (chosen.float() - zero)
            error = (left[:, column] - value) / root[column, column]
            left[:, column:end] -= error[:, None] * root[column, column:end]
            errors[:, column - start] = error
        left[:, end:] -= errors @ root[start:end, end:]
    zero = torch.cat(zeros, 1)
    if scheme.is_symmetric:
        zero = zero[:1, :1]
    return IntegerMatrix(scheme.bits, quants, torch.cat(scales, 1), zero)
