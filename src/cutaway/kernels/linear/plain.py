"""Matrix product with a dense weight, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def project_heads(x_THK: Tensor, matrices: Tensor) -> Tensor:
    """Each head times a transposed matrix of its own.

    Shapes: x [T, H, K], matrices [H, N, K] -> [T, H, N].
    """
    return (x_THK.transpose(0, 1) @ matrices.transpose(1, 2)).transpose(0, 1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x times the transposed weight, plus bias.

    Shapes: x [..., K], weight [N, K], bias [N] -> [..., N].
    """
    return functional.linear(x, weight, bias)
