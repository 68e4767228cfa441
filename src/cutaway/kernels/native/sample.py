"""Rows of logits to tokens in one native call: the cuts and the draw of sampling/, bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.kernels.native.library import check, library
from cutaway.kernels.native.structs import Code, Rows, Sample, StepStruct

_CHOICE = np.dtype(
    [("temperature", "f4"), ("floor", "f4"), ("top_k", "i8"), ("rest", "i8"), ("u", "i8")]
)
_DRAWN = np.dtype(
    [
        *(("token_id", "i8"), ("total", "f8"), ("peak", "f4"), ("left", "f4")),
        *(("logit", "f4"), ("unused", "f4"), ("checksum", "u8")),
    ]
)


class Choice(NamedTuple):
    """How a row is sampled.

    temperature: 0 takes the largest logit.   floor: weights below it are dropped; the largest is
    2^30.   top_k: 0 cuts nothing.   rest: 2^32 * (1 - top_p); negative cuts nothing.
    u: the random number, in [0, 2^32).
    """

    temperature: float = 0.0
    floor: float = 0.0
    top_k: int = 0
    rest: int = -1
    u: int = 0


class Drawn(NamedTuple):
    """What became of a row; where peak or left is not finite it gave no token.

    total: sum of e^(raw logit - peak) in units of 2^-34.   peak: largest raw logit, NaN where the
    row holds one.   left: largest edited logit.   logit: of the token, raw.
    checksum: of the raw row.
    """

    token_id: int
    total: float
    peak: float
    left: float
    logit: float
    checksum: int


def sample(raw: Sequence[Tensor], edited: Sequence[Tensor], rows: Sequence[Choice]) -> list[Drawn]:
    """A token of each row.

    Shapes: raw and edited one [V] each, float32 in main memory; edited may be raw.
    """
    if not rows:
        return []
    size = len(raw[0])
    drawn = np.zeros(len(rows), _DRAWN)
    choices = np.array(rows, _CHOICE)
    at_raw, at_edited = _addresses(raw, size), _addresses(edited, size)
    if not len(raw) == len(edited) == len(rows):
        raise AssertionError("one raw row, one edited row and one choice for each")
    arguments = Sample(
        *(Rows.LOGITS, len(rows), at_raw.ctypes.data, at_edited.ctypes.data, size),
        *(choices.ctypes.data, drawn.ctypes.data),
    )
    step = StepStruct(num_logit_rows=len(rows))
    address, num_bytes = ctypes.addressof(arguments), ctypes.sizeof(arguments)
    check(library().cw_run(Code.SAMPLE, address, num_bytes, ctypes.byref(step)))
    return [Drawn(*each[:5], checksum=each[6]) for each in drawn.tolist()]


def _addresses(rows: Sequence[Tensor], size: int) -> NDArray[np.uint64]:
    for row in rows:
        is_sound = row.dtype == torch.float32 and row.shape == (size,) and row.is_contiguous()
        if not (is_sound and row.device.type == "cpu"):
            raise AssertionError(f"a row of logits is not a contiguous float32 [{size}] on cpu")
    return np.array([row.data_ptr() for row in rows], np.uint64)
