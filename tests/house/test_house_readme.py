"""The README's Python example does what it says, word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house_tree import ROOT
from oracles import smollm2_gguf


@pytest.mark.slow
@pytest.mark.oracle
def test_the_python_example_runs_as_it_stands(tmp_path: Path) -> None:
    model = smollm2_gguf()
    cached = tmp_path / "models" / "smollm2" / model.name
    cached.parent.mkdir(parents=True)
    cached.symlink_to(model)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "CUTAWAY_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is Paris.")
    assert not done.stderr
