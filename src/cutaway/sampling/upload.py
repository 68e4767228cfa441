"""Host numbers on a tensor's device, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Number = TypeVar("Number", int, float)
Numbers: TypeAlias = Sequence[Number] | Sequence[Sequence[Number]]


def floats(values: Numbers[float] | NDArray[np.float64], like: Tensor) -> Tensor:
    """A float32 tensor beside like."""
    return _beside(torch.tensor(values, dtype=torch.float32), like)


def doubles(values: Numbers[float] | NDArray[np.float64], like: Tensor) -> Tensor:
    """A float64 tensor beside like."""
    return _beside(torch.tensor(values, dtype=torch.float64), like)


def integers(values: Numbers[int] | NDArray[np.int64], like: Tensor) -> Tensor:
    """An int64 tensor beside like."""
    return _beside(torch.tensor(values, dtype=torch.int64), like)


def bools(values: NDArray[np.bool_], like: Tensor) -> Tensor:
    """A bool tensor beside like."""
    return _beside(torch.from_numpy(values), like)


def _beside(values: Tensor, like: Tensor) -> Tensor:
    if like.device.type == "cpu":
        return values
    # From pinned memory the copy is queued; from pageable memory the host would wait for it.
    return values.pin_memory().to(like.device, non_blocking=True)
