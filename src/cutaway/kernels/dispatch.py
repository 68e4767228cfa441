"""Which form of an operation runs: the one rule, by device, dtype and what is asked.

Every folder of kernels/ that has a file triton.py beside its plain.py asks here. The plain form is
the definition: it takes everything, and is differentiable. Triton forms that are so too stand in
files triton_learned.py. Native kernels for CPUs are chosen
when a forward is recorded: kernels/lowering has the table of their forms, by operation.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# In float64 the plain form computes: it is what the others are measured against.
TRITON_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
LEARNS_ON = frozenset({"cuda"})  # devices; a test of kernels in the interpreter has one more
# A head's entries lie in one block of a kernel.
MOST_HEAD_SIZE = 512


def uses_triton(*tensors: Tensor) -> bool:
    """Whether the Triton form of an operation takes these: on a GPU, and with no gradient.

    torch's compiler, which only training asks, fuses plain forms itself.
    """
    if torch.compiler.is_compiling():
        return False
    first = tensors[0]
    if first.device.type != "cuda" or first.dtype not in TRITON_DTYPES or not has_triton():
        return False
    return not torch.is_grad_enabled() or not any(each.requires_grad for each in tensors)


def learns_in_triton(*tensors: Tensor) -> bool:
    """Whether the Triton form with a gradient takes these: on a GPU, where one is wanted.

    What torch's compiler compiles stays plain, as for uses_triton.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    first = tensors[0]
    if first.device.type not in LEARNS_ON or first.dtype not in TRITON_DTYPES or not has_triton():
        return False
    return any(each.requires_grad for each in tensors)


@cache
def has_triton() -> bool:
    """Whether Triton is installed; torch brings it where it is built for a GPU."""
    return find_spec("triton") is not None


def attends_by_length(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether attention over pages reads what a context has, however wide its page table is."""
    is_taken = dtype in TRITON_DTYPES and head_size <= MOST_HEAD_SIZE
    return device.type == "cuda" and is_taken and has_triton()
