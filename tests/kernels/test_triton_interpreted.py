"""The tests of Triton's forms in its interpreter: in a process that alone sees Triton."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trials import patience

ROOT = Path(__file__).parents[2]
TRITON = Path(os.environ.get("CUTAWAY_TRITON", ROOT / ".venv" / "triton"))
NAMES = (
    *("test_triton.py", "test_triton_experts.py", "test_triton_invariant.py"),
    *("test_triton_normed.py", "test_triton_splits.py", "test_triton_learned.py"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.oracle,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="on a GPU the kernels are compiled, by test_triton.py"
    ),
    pytest.mark.skipif(
        not (TRITON / "triton").is_dir(), reason="Triton is not at hand: make interpreter"
    ),
]


def test_kernels_for_gpus_equal_the_plain_ones_in_the_interpreter() -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(TRITON), os.environ.get("PYTHONPATH", "")])
    others = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # In CI half of each test's cases: the interpreter is slow, and on a GPU all of them are run.
    others["CUTAWAY_ONE_IN"] = str(patience(1, in_ci=2))
    # The interpreter's products are numpy's, whose rows have other bits by their place in some of
    # its kernels, as in that for AVX2; in this one they have not, as on a GPU.
    if platform.machine() == "x86_64":
        others["OPENBLAS_CORETYPE"] = "Prescott"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *(str(ROOT / "tests" / "kernels" / name) for name in NAMES),
        ],
        cwd=ROOT,
        env={**others, "PYTHONPATH": path.rstrip(os.pathsep), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed, done.stdout[-6000:] + done.stderr[-1000:]
    assert int(passed[1]) > 100, "the kernels' tests were not found"
