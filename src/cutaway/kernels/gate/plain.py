"""Products of an activated gate with a value, and activations that need no form of their own.

In plain PyTorch, upon kernels/elementwise. Shapes: x, gate, up [..., F] -> [..., F].
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from cutaway.kernels.elementwise import gelu, gelu_tanh, sigmoid, silu


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, SwiGLU. Source: Shazeer 2020, arXiv 2002.05202."""
    return silu(gate) * up


def gelu_tanh_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu_tanh(gate) * up, GeGLU with the tanh form."""
    return gelu_tanh(gate) * up


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) * up, GeGLU."""
    return gelu(gate) * up


def relu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return relu(gate) * up, ReGLU."""
    return relu(gate) * up


def relu(x: Tensor) -> Tensor:
    """Return x where it is above 0, else 0."""
    return functional.relu(x)


def relu2_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return relu2(gate) * up."""
    return relu2(gate) * up


def relu2(x: Tensor) -> Tensor:
    """Return the square of relu(x). Source: So et al. 2021, arXiv 2109.08668."""
    return relu(x).square()


def clamped_gate(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """Return g * sigmoid(alpha * g) * (u + 1), with g at most limit and u within limit of zero.

    Source: gpt-oss (Hugging Face GptOssExperts).
    """
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate * sigmoid(gate * alpha) * (up + 1)
