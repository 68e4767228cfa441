"""A library of native kernels that does not fit these files is refused, and the reason is told."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.kernels.native import library, structs
from program import environment

needs_native = pytest.mark.skipif(not library.is_available(), reason=library.why_missing())

# A struct of these files is changed before the library is asked for.
CHANGED = """
import ctypes
from cutaway.kernels.native import structs

class Swapped(ctypes.Structure):
    _fields_ = [(name, kind) for name, kind, *_ in reversed(structs.GatedStruct._fields_)]

structs.STRUCTS[structs.Code.GATED] = Swapped
from cutaway.kernels.native import library
print(library.is_available(), library.why_missing())
"""
STALE = """
#include <stdint.h>
int64_t cw_version(void) { return VERSION; }
"""


def run(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_native
def test_structs_lie_as_the_compiler_laid_them_out() -> None:
    lines = library.library().cw_layout().decode().splitlines()
    assert dict(line.split(" ", 1) for line in lines) == structs.layout()
    for code, struct in structs.STRUCTS.items():
        assert library.library().cw_sizeof(code) == ctypes.sizeof(struct)


@needs_native
def test_a_library_of_other_structs_is_refused_although_sizes_agree() -> None:
    found = run(CHANGED)
    assert found == (
        "False _native.so was built from other structs (cw_gated): run `make native`\n"
    )


@needs_native
@pytest.mark.parametrize(
    ("version", "message"),
    [
        (structs.VERSION - 1, f"has version {structs.VERSION - 1}, these files have"),
        (structs.VERSION, "is older than these files"),
    ],
)
def test_a_stale_library_is_refused(tmp_path: Path, version: int, message: str) -> None:
    source, built = tmp_path / "stale.c", tmp_path / "stale.so"
    source.write_text(STALE, "utf-8")
    flags = [f"-DVERSION={version}", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(source), "-o", str(built)], check=True)
    code = "from cutaway.kernels.native import library; print(library.why_missing())"
    found = run(code, CUTAWAY_NATIVE=str(built))
    assert f"stale.so {message}" in found and "run `make native`" in found
