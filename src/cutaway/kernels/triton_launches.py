"""How kernels in Triton follow each other: the next one starts while the one before it ends.

A step of few sequences is hundreds of short kernels, and between two of them a card idles for about
a microsecond. From Hopper on a kernel may be launched before its predecessor is done. It then waits
by itself before it touches what others wrote; weights, which nobody writes, it may read before.
Programs of one kernel that hand each other something count in a place that all kernels share.
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

MOST_COUNTERS = 1024
_counters: dict[torch.device, Tensor] = {}


def counters(device: torch.device) -> Tensor:
    """Of programs that are done, each 0 between launches. Shapes: [MOST_COUNTERS] int32.

    Whoever is the last of its programs sets its counter back. Kernels run one after the other, and
    one that starts early counts behind await_last.
    """
    if device not in _counters:
        _counters[device] = torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)
    return _counters[device]


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
