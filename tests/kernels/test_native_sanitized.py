"""The native kernels' tests against a build with the address and undefined sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from native_cases import needs_native

from cutaway.kernels.native import library
from trials import patience

ROOT = Path(__file__).resolve().parent.parent.parent
SANITIZERS = ("libasan.so", "libubsan.so")


def library_of(compiler: str, name: str) -> str:
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


# A buffer that is one row short: what the sanitizer must see.
CONTROL = """
import torch
from cutaway.kernels import native

weight = native.PackedWeight.from_matrix(torch.randn(20, 32), native.Kind.Q8)
operation = native.linear(torch.randn(9, 32), [weight], out=torch.empty(9, 20))
short = torch.empty(8, 20)
operation.arguments.out = short.data_ptr()
native.run(operation, native.NativeStep.of_rows(9))
"""


@needs_native  # it knows which instruction sets can run here
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not os.environ.get("CUTAWAY_SLOW_BUILDS"), reason="set CUTAWAY_SLOW_BUILDS to build it"
)
def test_kernels_are_clean_under_sanitizers(tmp_path: Path) -> None:
    """In the best instruction set of this CPU; CUTAWAY_SLOW_BUILDS=all takes every one it has."""
    compiler = shutil.which("g++")
    if compiler is None or not os.path.isabs(library_of(compiler, SANITIZERS[0])):
        pytest.skip("needs g++ with its sanitizers")
    found = library.isas() if os.environ["CUTAWAY_SLOW_BUILDS"] == "all" else library.isas()[:1]
    built, isas = tmp_path / "_native.so", ",".join(found)
    build = [sys.executable, ROOT / "native" / "build.py", "--sanitize", isas, "--output", built]
    subprocess.run(build, check=True, env={**os.environ, "CXX": compiler})
    environment = {
        **os.environ,
        "CUTAWAY_NATIVE": str(built),
        "CUTAWAY_ONE_IN": str(patience(1, in_ci=2)),  # cases of each test
        "LD_PRELOAD": " ".join(library_of(compiler, name) for name in SANITIZERS),
        # Python itself leaks by design; the kernels' own memory lives as long as the process.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    control = run("-c", CONTROL)
    assert control.returncode != 0 and "heap-buffer-overflow" in control.stderr
    names = ("fuzz", "linear", "attention", "experts", "latent", "delta", "program")
    files = (*names, "sample", "weight")
    tests = [str(Path(__file__).parent / f"test_native_{name}.py") for name in files]
    # A fork under the address sanitizer may hang: left out. Chunks are half of the time: of five
    # types of pages they are cut in a float and one of 8 bits.
    chosen = "not forked and not (any_chunk and (float16 or float8))"
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen)
    done = run("-m", "pytest", *options, *tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
