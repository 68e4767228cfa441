"""Scatter of new keys or values into pages, in plain PyTorch."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# Largest number that a dtype with scales is filled to.
_LARGEST: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_SMALLEST_SCALED = 1e-30  # below it the inverse of a scale would overflow


def store(pages: Tensor, values: Tensor, slots: Tensor, *, scales: Tensor | None = None) -> None:
    """Write values[t] to slot slots[t] of pages, in the pages' dtype.

    With scales, rows of the last dimension are kept as numbers times one scale.

    Shapes: pages [N, P, ..., C], scales [N, P, ...], values [T, ..., C],
            slots [T] with slot = page * P + offset.
    """
    if scales is not None:
        values, found = scale_rows(values, pages.dtype)
        _scatter(scales, found, slots)
    _scatter(pages, values.to(pages.dtype), slots)


def scale_rows(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows as numbers in eight bits and the scale of each: values are about numbers * scale.

    NaN or infinity in a row makes its scale so, and all its numbers 0.

    Shapes: [..., C] -> [..., C] in dtype, [...] float32.
    """
    values = values.float()
    largest = values.abs().amax(dim=-1)
    limit = _LARGEST[dtype]
    is_small = largest < _SMALLEST_SCALED
    inverse = (limit / largest).masked_fill(is_small | ~largest.isfinite(), 0.0)
    numbers = (values * inverse[..., None]).nan_to_num(0.0)
    if not dtype.is_floating_point:
        numbers = numbers.round()
    return numbers.to(dtype), (largest / limit).masked_fill(is_small, 0.0)


def _scatter(pages: Tensor, values: Tensor, slots: Tensor) -> None:
    # One byte is moved as a byte: not every device scatters float8.
    if pages.dtype.itemsize == 1:
        pages, values = pages.view(torch.uint8), values.view(torch.uint8)
    if pages.is_contiguous():
        pages.flatten(0, 1).index_copy_(0, slots, values)
    else:  # heads lie apart, as native kernels read them: slots are no rows
        pages[slots // pages.shape[1], slots % pages.shape[1]] = values
