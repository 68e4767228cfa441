"""`python -m cutaway` is the command, and so is the module that runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["cutaway", "cutaway.cli.main"])
def test_the_package_runs_as_the_command(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
