"""Rows that whoever runs a recorded forward puts in their buffer before each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutaway.kernels.recording import operation


def _meta(token_ids: Tensor, width: int) -> Any:
    return torch.empty((*token_ids.shape, width), device="meta")


@operation(shape_of=_meta)
def given_rows(token_ids: Tensor, width: int) -> Tensor:
    """The rows that are given with a step. Shapes: token_ids [T] -> [T, width] float32."""
    raise AssertionError(f"rows of {width} for {len(token_ids)} tokens are given to a recording")
