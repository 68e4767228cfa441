"""Memory for weights on large pages, where the system gives them to who asks.

Reading 2 MiB through pages of 4 KiB takes 512 translations, and each is looked up twice in a
virtual machine.
"""

from __future__ import annotations

import mmap
from typing import Final

import torch
from torch import Tensor

PAGE_BYTES: Final = 1 << 21
_CHUNK_BYTES: Final = 1 << 26  # of addresses: memory is taken as it is written to
_ALIGNMENT: Final = 64  # a register's


def room_for(num_bytes: int) -> Tensor:
    """Bytes of zeros, mapped by themselves where they fill large pages. Shapes: [num_bytes]."""
    if num_bytes < PAGE_BYTES or not _has_large_pages():
        return torch.zeros(num_bytes, dtype=torch.uint8)
    return _mapped(num_bytes)


class Shelf:
    """Small things side by side on large pages. They stay in memory until the last is let go."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def put(self, data: Tensor) -> Tensor:
        """A copy of bytes; the bytes themselves where they fill large pages, or there are none."""
        size = data.numel()
        if size >= PAGE_BYTES or not _has_large_pages():
            return data
        if size > self._chunk.numel():
            self._chunk = _mapped(_CHUNK_BYTES)
        place = self._chunk[:size].view(data.shape)
        self._chunk = self._chunk[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return place.copy_(data)


def _has_large_pages() -> bool:
    return hasattr(mmap, "MADV_HUGEPAGE")


def _mapped(num_bytes: int) -> Tensor:
    """Private memory that begins with a large page. A system without them gives small ones."""
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel that was built without them
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % PAGE_BYTES
    return whole[first : first + num_bytes]
