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
_FETCHING = tl.constexpr(132)  # programs that have the cache filled, of however many there are
_CHUNKS = tl.constexpr(32)  # that each of them asks for, a lane each
_MOST_OF_CHUNK = 3072  # bytes: 13 MB in all, of the 50 MB that an H200's cache has
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


def plan_fetch(following: Tensor | None, like: Tensor) -> dict[str, Any]:
    """What to launch a kernel with that calls fetch: the tensor, and the bytes of a chunk of it.

    following: contiguous, written by nothing of the step, and read by the kernel behind; or None.
    like: a tensor on the device of the kernel.
    """
    if following is None or not like.is_cuda or not _overlaps(like.device):
        return {"following_ptr": like, "CHUNK": 0}
    return {"following_ptr": following.view(torch.uint8), "CHUNK": chunk_of(following.nbytes)}


def chunk_of(num_bytes: int) -> int:
    """Bytes of a chunk, so that all chunks lie within so many: a multiple of 16, as cards ask."""
    return min(_MOST_OF_CHUNK, num_bytes // (_FETCHING.value * _CHUNKS.value) // 16 * 16)


@cache
def _overlaps(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def start_next(EARLY: tl.constexpr):
    """Let the next kernel start as soon as all programs of this one have."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch(ptr, CHUNK: tl.constexpr):
    """Have the card's cache read the beginning of what the next kernel reads.

    To be called in front of await_last, by kernels in which memory idles while they wait.
    """
    if CHUNK > 0:
        program = tl.program_id(0)
        if program < _FETCHING:
            first = (ptr + program.to(tl.int64) * (_CHUNKS * CHUNK)).to(tl.int64)
            tl.inline_asm_elementwise(
                """{
                .reg .pred p;
                .reg .u32 t;
                .reg .u64 a;
                mov.u32 t, %tid.x;
                setp.lt.u32 p, t, 32;
                mad.wide.u32 a, t, $2, $1;
                @p cp.async.bulk.prefetch.L2.global [a], $2;
                mov.u32 $0, 0;
                }""",
                "=r,l,r",
                [first, tl.full([], CHUNK, tl.int32)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


@triton.jit
def await_last(EARLY: tl.constexpr):
    """Wait until everything is there that kernels before this one wrote."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
