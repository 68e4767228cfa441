"""Rows that whoever runs a recorded forward puts beside its step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.kernels.recording import operation


@dataclass(eq=False)
class GivenRows:
    """Where they are put before each run. Shapes: rows [T, width] float32."""

    width: int
    rows: Tensor


def _meta(given: GivenRows, token_ids: Tensor) -> Any:
    return torch.empty((*token_ids.shape, given.width), device="meta")


@operation(shape_of=_meta)
def given_rows(given: GivenRows, token_ids: Tensor) -> Tensor:
    """The rows that were given with a step. Shapes: token_ids [T] -> [T, width]."""
    assert len(given.rows) == len(token_ids), "a row for each token"
    return given.rows
