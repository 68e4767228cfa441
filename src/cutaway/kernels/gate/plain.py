"""Activations of the feed-forward layer and products of an activated gate with a value.

All in plain PyTorch. Shapes: x, gate, up [..., F] -> [..., F].
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, SwiGLU. Source: Shazeer 2020, arXiv 2002.05202."""
    return functional.silu(gate) * up


def gelu_tanh_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu_tanh(gate) * up, GeGLU with the tanh form."""
    return gelu_tanh(gate) * up


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) * up, GeGLU."""
    return gelu(gate) * up


def relu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return relu(gate) * up, ReGLU."""
    return relu(gate) * up


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    return functional.silu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).

    Source: Hendrycks and Gimpel 2016, arXiv 1606.08415; GPT-2 and Gemma use this form.
    """
    return functional.gelu(x, approximate="tanh")


def gelu(x: Tensor) -> Tensor:
    """Return x / 2 * (1 + erf(x / sqrt(2)))."""
    return functional.gelu(x)


def relu(x: Tensor) -> Tensor:
    """Return x where it is above 0, else 0."""
    return functional.relu(x)


def clamped_gate(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """Return g * sigmoid(alpha * g) * (u + 1), with g at most limit and u within limit of zero.

    Source: gpt-oss (Hugging Face GptOssExperts).
    """
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate * (gate * alpha).sigmoid() * (up + 1)
