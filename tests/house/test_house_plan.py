"""What the plan of reliability and the Makefile run by name is there under that name."""

from __future__ import annotations

import re
import subprocess
import sys

from house_tree import ROOT


def test_every_row_names_tests_and_scripts_that_are_there() -> None:
    """In a process of its own, since the plan is imported from bench/ as its command does."""
    code = (
        "from plan.rows import ROWS\n"
        "for row in ROWS:\n    for run in row.runs:\n        print(*run.nodes, sep='\\n')"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "bench", capture_output=True, text=True, check=True
    )
    named = [n for n in made.stdout.split("\n") if n.startswith(("tests/", "bench/"))]
    assert len(named) > 30
    for node in named:
        file, _, test = node.partition("::")
        name = re.sub(r"\[.*", "", test)
        assert (ROOT / file).is_file(), node
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), node


def test_the_makefile_names_tests_that_are_there() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    files = re.findall(r"tests/\w+/\w+\.py", text)
    assert files and all((ROOT / file).is_file() for file in files), files
