"""Rows of logits to tokens in one native call: the cuts and the draw of sampling/, bit for bit."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from cutaway.kernels.native.library import check, library
from cutaway.kernels.native.structs import (
    ChoiceStruct,
    Code,
    DrawnStruct,
    Rows,
    SampleStruct,
    StepStruct,
)

# As numbers: an IntEnum's member is looked up and turned each time.
_LOGITS, _SAMPLE, _NUM_BYTES = int(Rows.LOGITS), int(Code.SAMPLE), ctypes.sizeof(SampleStruct)
# ChoiceStruct and DrawnStruct in one piece each, as Choice and Drawn have them.
_CHOICE: Final = struct.Struct("=ffqqqq")
_DRAWN: Final = struct.Struct("=qdfff4xQqq")


class RowChoice(NamedTuple):
    """How a row is sampled.

    temperature: 0 takes the largest logit.   floor: weights below it are dropped; the largest is
    2^30.   top_k: 0 cuts nothing.   rest: 2^32 * (1 - top_p); negative cuts nothing.
    u: the random number, in [0, 2^32).   watched: a token whose weight is told; negative: the one
    that is drawn.
    """

    temperature: float = 0.0
    floor: float = 0.0
    top_k: int = 0
    rest: int = -1
    u: int = 0
    watched: int = -1


class Drawn(NamedTuple):
    """What became of a row; where peak or left is not finite it gave no token.

    total: sum of e^(raw logit - peak) in units of 2^-34.   peak: largest raw logit, NaN where the
    row holds one.   left: largest edited logit.   logit: of the token, raw.
    checksum: of the raw row.   weight, weights: of the watched token and of all, after all cuts; 0
    where the largest logit is taken.
    """

    token_id: int
    total: float
    peak: float
    left: float
    logit: float
    checksum: int
    weight: int
    weights: int


class RowSampler:
    """A token of each row of some logits, again and again: what they hold may change.

    Where they lie is asked once and the call's memory kept: after a step that read all weights the
    caches hold nothing of the host, and all that is touched anew takes long, torch the longest.

    Shapes: logits [R, V] float32 in main memory.
    """

    def __init__(self, logits: Tensor) -> None:
        count, size = logits.shape
        self.logits = logits
        first = _address(logits, size) if count else 0
        stride = logits.stride(0) * 4 if count > 1 else 0
        self._places = [first + row * stride for row in range(count)]
        self._pointers = (ctypes.c_void_p * (2 * count))(*self._places * 2)  # raw, then edited
        self._choices, self._drawn = (ChoiceStruct * count)(), (DrawnStruct * count)()
        at = ctypes.addressof(self._pointers)
        self._arguments = SampleStruct(
            *(_LOGITS, count, at, at + 8 * count, size),
            *(ctypes.addressof(self._choices), ctypes.addressof(self._drawn)),
        )
        self._step = StepStruct(0, 0, count)
        arguments = ctypes.addressof(self._arguments)
        self._call = (_SAMPLE, arguments, _NUM_BYTES, ctypes.byref(self._step))

    def run(self, edited: Mapping[int, Tensor], rows: Sequence[RowChoice]) -> list[Drawn]:
        """A token of each row.

        edited: what a row is drawn from where that is not its logits.
        Shapes: edited one [V] each, float32 in main memory.
        """
        count, size = len(self._places), self._arguments.vocab_size
        if count != len(rows):
            raise AssertionError(f"{count} rows of logits have {len(rows)} choices")
        if not rows:
            return []
        for row, choice in enumerate(rows):
            _CHOICE.pack_into(self._choices, row * _CHOICE.size, *choice)
        for row, each in edited.items():
            self._pointers[count + row] = _address(each[None], size)
        try:
            check(library().cw_run(*self._call))
        finally:
            for row in edited:
                self._pointers[count + row] = self._places[row]
        return [Drawn._make(each) for each in _DRAWN.iter_unpack(self._drawn)]


def _address(logits: Tensor, size: int) -> int:
    """Of the first row; each lies in one piece, of float32."""
    is_sound = logits.dtype == torch.float32 and logits.shape[1] == size and logits.is_cpu
    if not (is_sound and (size == 1 or logits.stride(1) == 1)):
        raise AssertionError(f"a row of logits is not a contiguous float32 [{size}] on cpu")
    return logits.data_ptr()
