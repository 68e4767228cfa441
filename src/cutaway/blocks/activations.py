"""Activations by name, alone and as the product of an activated gate with a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from cutaway.kernels.gate import (
    Gate,
    clamped_gate,
    gelu,
    gelu_gate,
    gelu_tanh,
    gelu_tanh_gate,
    relu,
    relu2,
    relu2_gate,
    relu_gate,
    silu,
    silu_gate,
)

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "relu2": relu2,
}

GATES: Mapping[str, Gate] = {
    "silu": silu_gate,
    "gelu": gelu_gate,
    "gelu_tanh": gelu_tanh_gate,
    "relu": relu_gate,
    "relu2": relu2_gate,
}


def clamp_gate(*, alpha: float, limit: float) -> Gate:
    """The gate of gpt-oss: both sides bounded by limit, and a value around one."""
    return partial(clamped_gate, alpha=alpha, limit=limit)


def name_of(function: Activation | Gate) -> str:
    """An activation's or a gate's name in the tables; a clamped one has none there."""
    for name in ACTIVATIONS:
        if function in (ACTIVATIONS[name], GATES[name]):
            return name
    return "clamped"
