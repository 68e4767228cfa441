"""Blocks that a process keeps: the same memory serves again, without a page fault."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOURCE = """
import resource
import torch
from cutaway.kernels.large_blocks import keep_freed_blocks

keep_freed_blocks()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        parts = [torch.zeros(1 << 20) for _ in range(4)]
        del parts
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_blocks_are_used_again() -> None:
    told = subprocess.run(
        [sys.executable, "-c", SOURCE], check=True, capture_output=True, text=True
    )
    # Twenty blocks of 1,024 pages each.
    assert int(told.stdout) < 1024
