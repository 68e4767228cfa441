"""Activations of the feed-forward layer, alone and as gates."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.elementwise import gelu, gelu_tanh, silu
from cutaway.kernels.gate import plain
from cutaway.kernels.recording import operation

__all__ = [
    "Gate",
    "clamped_gate",
    "fused_number",
    "gelu",
    "gelu_gate",
    "gelu_tanh",
    "gelu_tanh_gate",
    "relu",
    "relu2",
    "relu2_gate",
    "relu_gate",
    "silu",
    "silu_gate",
]

Gate = Callable[[Tensor, Tensor], Tensor]  # of gate and value, the activation included


@operation()
def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See plain.silu_gate."""
    if uses_triton(gate, up) and _are_rows(gate, up):
        from cutaway.kernels.gate import triton

        return triton.gate(gate, up, kind=triton.SILU)
    return plain.silu_gate(gate, up)


@operation()
def gelu_tanh_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See plain.gelu_tanh_gate."""
    if uses_triton(gate, up) and _are_rows(gate, up):
        from cutaway.kernels.gate import triton

        return triton.gate(gate, up, kind=triton.GELU_TANH)
    return plain.gelu_tanh_gate(gate, up)


@operation()
def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See plain.gelu_gate."""
    return plain.gelu_gate(gate, up)


@operation()
def relu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See plain.relu_gate."""
    return plain.relu_gate(gate, up)


@operation()
def relu(x: Tensor) -> Tensor:
    """See plain.relu."""
    return plain.relu(x)


def relu2(x: Tensor) -> Tensor:
    """See plain.relu2. Two operations, each of which native kernels have, in place of a new one."""
    above = relu(x)
    return above * above


def relu2_gate(gate: Tensor, up: Tensor) -> Tensor:
    """See plain.relu2_gate. As relu2."""
    return relu2(gate) * up


@operation()
def clamped_gate(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """See plain.clamped_gate."""
    return plain.clamped_gate(gate, up, alpha=alpha, limit=limit)


def fused_number(gate: Gate) -> int | None:
    """A gate's number in triton.py, for kernels that have it in them; None for others."""
    return 0 if gate is silu_gate else 1 if gate is gelu_tanh_gate else None


def _are_rows(gate: Tensor, up: Tensor) -> bool:
    """Whether both are matrices whose rows are whole in memory."""
    return gate.dim() == 2 and gate.stride(1) == 1 and up.stride(1) == 1
