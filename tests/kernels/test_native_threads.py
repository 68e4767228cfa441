"""Threads that sleep, come late, or are more than there are cores: same bits, and an end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_cases import needs_native, packed, random, random_step, running

from cutaway.kernels import native
from cutaway.kernels.native import structs

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("check/crew.cpp", "runtime/pool.cpp", "runtime/crew.cpp", "runtime/signal.cpp")
OTHER_SYSTEMS = "-DCUTAWAY_NO_FUTEX"  # they sleep by other means


@pytest.mark.parametrize(
    "flags", [("-fsanitize=thread",), (OTHER_SYSTEMS, "-fsanitize=address,undefined")]
)
def test_phases_are_whole_whatever_threads_do(tmp_path: Path, flags: tuple[str, ...]) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program, native_folder = tmp_path / "crew", ROOT / "native"
    sources = [str(native_folder / name) for name in FILES]
    command = [compiler, "-std=c++17", "-O1", "-pthread", *flags, *sources, "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip(f"this compiler lacks the libraries of {flags[-1]}")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program), "60"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "all equal\n", done.stdout + done.stderr


@needs_native
@pytest.mark.parametrize("threads", [2, 8, 33])
def test_bits_hold_with_more_threads_than_cores(threads: int) -> None:
    heads, groups, size, tokens = 4, 2, 16, 39
    pages = native.Pages.of(torch.zeros(90, 16, groups, size), torch.zeros(90, 16, groups, size))
    qkv = random(tokens, (heads + 2 * groups) * size)
    mixed, out = torch.empty(tokens, heads * size), torch.empty(tokens, 200)
    gate, up = (packed(native.Kind.Q8, 200, heads * size, seed=i) for i in (1, 2))
    rotation = native.Rotation(random(700, 8, seed=2), random(700, 8, seed=3))
    scoring, program = native.NativeScoring(0.25), native.Program()
    program.add(
        native.attention(qkv, pages, num_heads=heads, rotation=rotation, out=mixed, scoring=scoring)
    )
    program.add(native.multiply_gate(mixed, gate, up, out=out))
    step = native.NativeStep.of(random_step([1, 30, 8], [600, 70, 300], page_size=16, num_pages=90))
    with running(threads=1):
        program.run(step)
    wanted = out.clone()
    with running(threads=threads):
        for _ in range(30):
            out.zero_()
            program.run(step)
            assert torch.equal(out, wanted)


# Fills the memory that is left with a program: the last operation must be refused, not thrown.
HUNGRY = """
import ctypes, resource, torch
from cutaway.kernels import native
from cutaway.kernels.native import library

x = torch.ones(1, 32)
operation = native.norm(x, torch.ones(32), 1e-5, out=torch.empty(1, 32))
size, address = ctypes.sizeof(operation.arguments), ctypes.addressof(operation.arguments)
add, program = library.library().cw_program_add, library.library().cw_program_new()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for count in range(3_000_000):
    status = add(program, operation.code, address, size)
    if status:
        break
print("status", status, count > 1000)
"""


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_memory_that_ends_while_recording_is_an_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"status {int(structs.Status.NO_MEMORY)} True\n", done.stderr
