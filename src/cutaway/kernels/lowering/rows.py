"""How recorded values lie in memory, as far as native operations ask."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from cutaway.kernels import native
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.recording import ROWS, TOKENS, Recorded


def rows_of(x: Recorded) -> Rows:
    """Which count of a step a value's rows follow."""
    return Rows.LOGITS if x.shape[0] == ROWS else Rows.TOKENS


def start_of(x: Recorded) -> int:
    """The first entry of a value in what it is a view of."""
    return int(x.meta.storage_offset())


def is_spaced(x: Any) -> TypeGuard[Recorded]:
    """Whether a value has a row per token or logit row, whose entries follow one another."""
    if not isinstance(x, Recorded) or x.dtype != torch.float32 or x.root.read is not None:
        return False
    root = x.root.meta
    if not root.is_contiguous() or root.shape[0] not in (TOKENS, ROWS) or x.dim() < 2:
        return False
    inner = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if size != 1 and stride != inner:
            return False
        inner *= size
    return x.shape[0] == root.shape[0] and x.stride(0) == root.stride(0)


def is_rows(x: Any) -> TypeGuard[Recorded]:
    """Whether a value is all of a buffer, in any number of dimensions. Shapes: [T, ...]."""
    return is_spaced(x) and x.meta.is_contiguous()


def is_matrix(x: Any) -> TypeGuard[Recorded]:
    """Whether a value is the whole of a buffer's rows. Shapes: [T, D] or [R, D]."""
    return is_spaced(x) and x.dim() == 2 and x.meta.is_contiguous()


def is_heads(x: Any) -> TypeGuard[Recorded]:
    """Whether a value is heads side by side in a row. Shapes: [T, H, C]."""
    return is_spaced(x) and x.dim() == 3 and x.shape[2] <= native.MOST_HEAD_SIZE


def is_apart(x: Any) -> TypeGuard[Recorded]:
    """Whether a value is rows of heads, which may lie apart. Shapes: [T, C] or [T, H, C]."""
    if not isinstance(x, Recorded) or x.dim() not in (2, 3) or not is_spaced(x.root):
        return False
    is_whole = x.stride(-1) == 1 or x.shape[-1] == 1
    return is_whole and x.shape[0] == x.root.shape[0] and x.stride(0) == x.root.stride(0)
