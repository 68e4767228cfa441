"""Vectors on a plane: their two principal axes, and names drawn at their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cutaway.views.parts.drawing import WIDTH, Drawing, Span, columns, cut
from cutaway.views.parts.payload import Array

_HEIGHT, _LABEL = 13, 12
_MOVES = (0, 1, -1, 2, -2)  # lines by which a name may leave its place for want of room


def principal(rows: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Rows along the two axes on which they differ most, and the share of variance on each.

    The sign of an axis is such that its largest entry is positive.

    Shapes: [n, D] -> [n, 2].
    """
    centred = rows.double() - rows.double().mean(dim=0)
    left, sizes, _ = cast("tuple[Tensor, Tensor, Tensor]", torch.linalg.svd(centred, False))
    points = functional.pad((left * sizes)[:, :2], (0, max(0, 2 - len(sizes))))
    largest = points.gather(0, points.abs().argmax(dim=0, keepdim=True))
    shares = functional.pad(sizes**2 / (sizes**2).sum().clamp_min(1e-30), (0, 1))
    return points * largest.sign(), (float(shares[0]), float(shares[1]))


def draw_points(names: Sequence[str], points: Array, drawing: Drawing) -> None:
    """Names at their places; one that would lie on another moves up to two lines, or is left out.

    Shapes: points [names, 2].
    """
    grid: list[list[str]] = [[" "] * WIDTH for _ in range(_HEIGHT)]
    low, high = points.min(axis=0), points.max(axis=0)
    shares = (points - low) / np.maximum(high - low, 1e-9)
    hidden = 0
    for name, share in zip(names, shares, strict=True):
        label, x, y = cut(name, _LABEL), float(share[0]), float(share[1])
        row, column = round((1 - y) * (_HEIGHT - 1)), round(x * (WIDTH - _LABEL - 2))
        place = slice(column, column + columns(label) + 1)
        free = [
            row + move
            for move in _MOVES
            if 0 <= row + move < _HEIGHT and set(grid[row + move][place]) == {" "}
        ]
        if not free:
            hidden += 1
            continue
        # A character of two columns takes the place of two; a blank behind keeps names apart.
        parts = [part for c in label for part in (c, "")[: columns(c)]]
        grid[free[0]][place] = [*parts, "\u00a0"]
    for line in grid:
        drawing.line("".join(line).replace("\u00a0", " ").rstrip())
    if hidden:
        drawing.line(Span(f"{hidden} lie under others and are not drawn", "dim"))
