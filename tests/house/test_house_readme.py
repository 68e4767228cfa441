"""What the README shows is what one gets: its Python example, and its picture of a lens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.kernels import capture
from house_tree import ROOT
from oracles import smollm2_gguf

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of models with the default one in it."""
    model = smollm2_gguf()
    cached = tmp_path / "models" / "smollm2" / model.name
    cached.parent.mkdir(parents=True)
    cached.symlink_to(model)
    return tmp_path


def told(line: str) -> tuple[str, list[int]]:
    """A line with its shares apart; ranks beyond three may move by rounding."""
    words = " ".join(re.sub(r"#([4-9]|\d\d+)", "#", re.sub(r"\d+%", "%", line)).split())
    return words, [int(share) for share in re.findall(r"(\d+)%", line)]


@pytest.mark.slow
@pytest.mark.oracle
def test_16_the_lens_is_what_its_command_prints(cache: Path) -> None:
    """Words, ranks and shares: columns stand as on the terminal, rows are chosen."""
    if not capture.is_available():
        pytest.skip("the README shows what the native kernels compute")
    (command,) = re.findall(r"^    (cutaway view .*--view lens.*)$", README, re.MULTILINE)
    excerpt = re.findall(r"^    ( *(?:lens:|layer|\d+|came) .*)$", README, re.MULTILINE)
    assert len(excerpt) == 6
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        env={**os.environ, "CUTAWAY_CACHE": str(cache), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [told(line) for line in done.stdout.splitlines()]
    for line in excerpt:
        words, shares = told(line)
        (theirs,) = [found for said, found in printed if said == words]
        # Packed products of another instruction set may round otherwise.
        assert all(abs(a - b) <= 3 for a, b in zip(shares, theirs, strict=True)), line


@pytest.mark.slow
@pytest.mark.oracle
def test_the_python_example_runs_as_it_stands(cache: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "CUTAWAY_CACHE": str(cache), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is Paris.")
    assert not done.stderr
