"""Matrices that are unpacked once for many products, and given back after them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from cutaway.kernels import capture
from cutaway.quantize.packed import Packed, unpack_once

MIB = 2**20


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(not capture.is_available(), reason="needs the native kernels")
def test_unpacked_matrices_are_equal_and_go_back_to_the_system() -> None:
    """Malloc keeps what is freed where its threshold has grown: 844 of 952 MB of SmolLM2."""
    model = nn.ModuleList(
        Packed.of(torch.randn(1024, 1024), row_order=None, widens=True) for _ in range(32)
    )
    parts = [part for part in model if isinstance(part, Packed)]
    held: list[torch.Tensor] = []  # what others allocate meanwhile, and keep
    torch.ones(7 * MIB).sum()  # freed: from now on glibc takes blocks as large from its heap
    before = resident()
    for _ in range(3):
        with unpack_once(model, most_bytes=2**30) as unpacking:
            for _ in unpacking:
                held += [torch.ones(100) for _ in range(50)]
            assert resident() - before > 100 * MIB
            unpacked = parts[7].unpacked
            assert unpacked is not None and torch.equal(unpacked, parts[7].dense())
            del unpacked
        assert all(part.unpacked is None for part in parts)
        until = time.monotonic() + 20
        while resident() - before > 40 * MIB and time.monotonic() < until:
            time.sleep(0.01)
        assert resident() - before < 40 * MIB


@pytest.mark.skipif(not capture.is_available(), reason="needs the native kernels")
def test_a_large_matrix_is_unpacked_in_steps() -> None:
    """Else a vocabulary's matrix holds whoever waits for a quarter of a second."""
    wide, small = (
        Packed.of(torch.randn(rows, 512), row_order=None, widens=True) for rows in (7001, 33)
    )
    with unpack_once(nn.ModuleList([wide, small]), most_bytes=2**30) as unpacking:
        seen: list[int] = []  # matrices that are whole, step by step
        for _ in unpacking:
            seen.append(sum(part.unpacked is not None for part in (wide, small)))
        assert seen == [0, 0, 0, 0, 1]
        for part in (wide, small):
            assert part.unpacked is not None and torch.equal(part.unpacked, part.dense())
