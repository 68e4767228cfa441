"""Activations of the feed-forward layer, alone and as gates."""

from cutaway.kernels.elementwise import gelu, gelu_tanh, silu
from cutaway.kernels.gate.plain import (
    clamped_gate,
    gelu_gate,
    gelu_tanh_gate,
    relu,
    relu_gate,
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
