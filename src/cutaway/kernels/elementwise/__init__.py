"""Functions of single entries and sums of rows: the same bits wherever an entry or a row lies."""

from cutaway.kernels.elementwise.plain import (
    gelu,
    gelu_tanh,
    power,
    row_sum,
    sigmoid,
    silu,
    softplus,
)

__all__ = ["gelu", "gelu_tanh", "power", "row_sum", "sigmoid", "silu", "softplus"]
