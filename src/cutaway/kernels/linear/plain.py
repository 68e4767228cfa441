"""Matrix product with a dense weight, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x times the transposed weight, plus bias.

    Shapes: x [..., K], weight [N, K], bias [N] -> [..., N].
    """
    return functional.linear(x, weight, bias)
