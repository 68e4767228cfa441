"""How kernels in Triton follow each other: the next one starts while the one before it ends.

A step of few sequences is hundreds of short kernels, and between two of them a card idles for about
a microsecond. From Hopper on a kernel may be launched before its predecessor is done. It then waits
by itself before it touches what others wrote; weights, which nobody writes, it may read before.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def early(like: Tensor) -> dict[str, Any]:
    """What to launch a kernel with that calls start_next and await_last first, whatever the card.

    like: a tensor on the device of the kernel.
    """
    if like.is_cuda and _overlaps(like.device):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


@cache
def _overlaps(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def start_next(EARLY: tl.constexpr):
    """Let the next kernel start as soon as all programs of this one have."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def await_last(EARLY: tl.constexpr):
    """Wait until everything is there that kernels before this one wrote."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
