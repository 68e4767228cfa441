"""torch's C++ library, loaded before torch: the one that the import then uses, and never twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cutaway.kernels import torch_library
from program import environment

# Each in a process of its own: torch is in this one.
BEFORE = """
import sys
from cutaway.kernels import torch_library
def mapped():
    return [line for line in open("/proc/self/maps") if line.endswith("/libtorch_cpu.so\\n")]
assert torch_library.load() and "torch" not in sys.modules
before = mapped()
assert before, "the library is there"
import torch
assert mapped() == before, "the import found it"
assert not torch_library.load()
assert (torch.ones(3, 4) @ torch.ones(4, 2)).tolist() == [[4.0, 4.0]] * 3
"""
BESIDE = """
import sys
from cutaway.kernels import torch_library
sys.path.insert(0, sys.argv[1])
assert not torch_library.load()
assert not any("libtorch" in line for line in open("/proc/self/maps"))
"""


def run(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    sys.platform != "linux" or torch.version.cuda is not None or torch.version.hip is not None,
    reason="only Linux's builds for CPUs are loaded ahead",
)
def test_the_import_takes_what_was_loaded_before() -> None:
    run(BEFORE)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("library", [None, "libtorch_cuda.so", "libtorch_cpu.so"])
def test_an_unusual_torch_is_left_to_its_import(tmp_path: Path, library: str | None) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    if library is not None:
        (tmp_path / "torch" / "lib" / library).write_bytes(b"no library")
    run(BESIDE, str(tmp_path))


def test_nothing_is_done_where_torch_is_there() -> None:
    assert not torch_library.load()
