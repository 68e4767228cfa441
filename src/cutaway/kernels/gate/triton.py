"""Products of an activated gate with a value in Triton: one pass over both."""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.triton_launches import await_last, early, start_next

SILU, GELU_TANH = 0, 1
_BLOCK = 1024


def gate(gates: Tensor, up: Tensor, *, kind: int) -> Tensor:
    """activation(gates) * up, rounded between as in plain.py.

    Rows may lie side by side in one tensor, as a joined product leaves them.

    Shapes: [T, F] each -> [T, F].
    """
    num_rows, width = gates.shape
    out = torch.empty(num_rows, width, dtype=gates.dtype, device=gates.device)
    if num_rows:
        _gate[(num_rows, triton.cdiv(width, _BLOCK))](
            *(gates, up, out, width, gates.stride(0), up.stride(0)),
            KIND=kind,
            BLOCK=_BLOCK,
            **early(gates),
            num_warps=4,
        )
    return out


@triton.jit
def _gate(
    gate_ptr,
    up_ptr,
    out_ptr,
    width,
    gate_stride,
    up_stride,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    await_last(EARLY)
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    gate = tl.load(gate_ptr + row * gate_stride + place, mask=inside, other=0.0)
    up = tl.load(up_ptr + row * up_stride + place, mask=inside, other=0.0)
    tl.store(out_ptr + row * width + place, apply_gate(gate, up, KIND), mask=inside)


@triton.jit
def apply_gate(gate, up, KIND: tl.constexpr):
    """activation(gate) * up of numbers of one dtype."""
    wide = gate.to(tl.float32)
    active = wide / (1.0 + tl.exp(-bend(wide, KIND)))
    return (active.to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def bend(wide, KIND: tl.constexpr):
    """What a logistic function is taken of: the activation of x is x / (1 + exp(-bend(x)))."""
    if KIND == 0:
        bent = wide
    else:
        # 1 + tanh(x) is 2 / (1 + exp(-2x)), without a difference of two numbers that are alike.
        bent = 2.0 * (0.7978845608028654 * (wide + 0.044715 * wide * wide * wide))
    return bent
