"""Activations of the feed-forward layer, alone and as gates."""

from cutaway.kernels.gate.plain import (
    clamped_gate,
    gelu,
    gelu_gate,
    gelu_tanh,
    gelu_tanh_gate,
    relu,
    relu_gate,
    silu,
    silu_gate,
)

__all__ = [
    "clamped_gate",
    "gelu",
    "gelu_gate",
    "gelu_tanh",
    "gelu_tanh_gate",
    "relu",
    "relu_gate",
    "silu",
    "silu_gate",
]
