"""NEON against the portable kernels, bit for bit, in an emulator."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not os.environ.get("CUTAWAY_SLOW_BUILDS"), reason="set CUTAWAY_SLOW_BUILDS=1 to build it"
)
def test_neon_gives_the_bits_of_the_portable_kernels(tmp_path: Path) -> None:
    emulated = platform.machine() != "aarch64"
    if emulated and not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {COMPILER} and {EMULATOR}, or a machine with NEON")
    program = tmp_path / "isas"
    build = [sys.executable, ROOT / "native" / "build.py", "--program", program]
    environment = {**os.environ, "CXX": COMPILER} if emulated else dict(os.environ)
    subprocess.run([*build, "--machine", "aarch64"], check=True, env=environment)
    run = [EMULATOR, "-cpu", "max", str(program)] if emulated else [str(program)]
    rounds = "8" if os.environ["CUTAWAY_SLOW_BUILDS"] == "all" else "4"
    done = subprocess.run([*run, rounds], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{rounds} rounds alike on: neon portable\n"
