"""A native operation as data, and the checks that every one's tensors pass.

Every tensor is float32 on the CPU unless said otherwise. Rows of buffers are room: a step uses
as many as it has. Letters as in native/cutaway.h.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.kernels.native.structs import Code, NormingStruct, NormKind


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a native kernel, and what must stay in memory while it may run."""

    code: Code
    arguments: ctypes.Structure
    kept: tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class NormWeights:
    """A norm of rows: by root mean square, or by mean and deviation; then weight and bias.

    Shapes: weight and bias [width].
    """

    weight: Tensor | None
    epsilon: float
    bias: Tensor | None = None
    kind: NormKind = NormKind.RMS

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that must stay in memory."""
        return (self.weight, self.bias)


def norming(norm: NormWeights | None, width: int) -> NormingStruct:
    """Checked pointers of a norm of rows of that width, or of none."""
    if norm is None:
        return NormingStruct(0, 0, 0.0, NormKind.NONE)
    for each in norm.tensors:
        if each is not None:
            require_vector(each, width)
    return NormingStruct(address(norm.weight), address(norm.bias), norm.epsilon, norm.kind)


def tensors_of(*norms: NormWeights | None) -> tuple[Tensor | None, ...]:
    """All tensors of some norms."""
    return tuple(each for norm in norms if norm is not None for each in norm.tensors)


def require(is_met: bool, sentence: str) -> None:
    """Raise our own fault, also where assertions are off: a wrong pointer would follow."""
    if not is_met:
        raise AssertionError(sentence)


def require_float(x: Tensor) -> None:
    """Raise unless a tensor is float32 on the CPU."""
    # Sentences are made for faults alone: training asks some hundred times an update.
    if not (x.is_cpu and x.dtype == torch.float32):
        sentence = f"a tensor is {x.dtype} on {x.device}; native kernels take float32 on cpu"
        raise AssertionError(sentence)


def require_matrix(x: Tensor, width: int, rows: int | None = None) -> None:
    """Contiguous float32 [rows, width]; any number of rows from 1 where none is given."""
    require_float(x)
    shape = x.shape
    is_sound = len(shape) == 2 and shape[1] == width and shape[0] > 0 and x.is_contiguous()
    if not is_sound or not (rows is None or shape[0] == rows):
        sentence = f"shape {tuple(shape)} is not a contiguous [{rows or 'rows'}, {width}]"
        raise AssertionError(sentence)


def require_vector(x: Tensor, width: int) -> None:
    """Raise unless a tensor is contiguous float32 [width]."""
    require_float(x)
    if not (x.shape == (width,) and x.is_contiguous()):
        raise AssertionError(f"shape {tuple(x.shape)} is not a contiguous [{width}]")


def require_spaced(x: Tensor, shape: tuple[int, ...]) -> None:
    """Rows may lie apart; inside a row all is contiguous, and rows do not overlap."""
    require_float(x)
    require(tuple(x.shape) == shape and shape[0] > 0, f"shape {tuple(x.shape)} is not {shape}")
    inner = 1
    for size, stride in zip(reversed(shape[1:]), reversed(x.stride()[1:]), strict=True):
        require(size == 1 or stride == inner, "a row is not contiguous")
        inner *= size
    require(x.stride(0) >= inner, "rows overlap")


def require_heads(x: Tensor, shape: tuple[int, int, int]) -> None:
    """Heads of float32 [rows, heads, C] may lie apart too; neither they nor rows overlap."""
    require_float(x)
    require(tuple(x.shape) == shape and shape[0] > 0, f"shape {tuple(x.shape)} is not {shape}")
    rows, heads, size = x.stride()
    require(shape[2] == 1 or size == 1, "a head is not contiguous")
    require(heads >= shape[2], "heads overlap")
    require(rows >= (shape[1] - 1) * heads + shape[2], "rows overlap")


def require_apart(x: Tensor, out: Tensor) -> None:
    """Raise where input and output of a product overlap."""
    begin, end = x.data_ptr(), x.data_ptr() + x.nbytes
    is_apart = out.data_ptr() >= end or out.data_ptr() + out.nbytes <= begin
    require(is_apart, "input and output of a product share memory")


def address(x: Tensor | None) -> int:
    """Where a tensor's numbers lie; 0 for none."""
    return 0 if x is None else x.data_ptr()
