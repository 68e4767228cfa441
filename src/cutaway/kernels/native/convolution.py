"""The native operation of short convolutions, whose last inputs stay in their pages."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import (
    Operation,
    address,
    require,
    require_apart,
    require_float,
    require_matrix,
    require_vector,
)
from cutaway.kernels.native.structs import Code, Rows


@dataclass(frozen=True, eq=False)
class InputPages:
    """The last inputs of a convolution [N, width - 1, channels]."""

    inputs: Tensor
    group: int
    page_size: int


def convolve(
    x: Tensor, weights: Tensor, bias: Tensor | None, pages: InputPages, *, out: Tensor
) -> Operation:
    """Each channel alone: a weighted sum of its last tokens, and its bias.

    Shapes: x, out [T, channels]; weights [channels, width]; bias [channels].
    """
    channels, width = weights.shape
    require_matrix(x, channels)
    require_matrix(out, channels, len(x))
    require_matrix(weights, width, channels)
    require_apart(x, out)
    if bias is not None:
        require_vector(bias, channels)
    require_float(pages.inputs)
    shape = (len(pages.inputs), width - 1, channels)
    is_sound = tuple(pages.inputs.shape) == shape and pages.inputs.is_contiguous()
    require(is_sound, f"inputs of shape {tuple(pages.inputs.shape)} are not contiguous {shape}")
    arguments = structs.ConvolveStruct(
        *(Rows.TOKENS, len(x), x.data_ptr(), weights.data_ptr(), address(bias), channels, width),
        *(pages.inputs.data_ptr(), pages.group, len(pages.inputs), pages.page_size),
        out.data_ptr(),
    )
    return Operation(Code.CONVOLVE, arguments, (x, weights, bias, pages.inputs, out))
