"""The rules in tests/conftest.py: where oracles are required, none is skipped in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house_tree import ROOT

SKIPPING = {
    "by_call": """
import pytest

@pytest.mark.oracle
def test_compares():
    pytest.skip("the reference is absent")

def test_other():
    pytest.skip("no oracle: may be skipped anywhere")
""",
    "by_fixture": """
import pytest

@pytest.fixture
def reference():
    pytest.skip("the reference is absent")

@pytest.mark.oracle
def test_compares(reference):
    pass
""",
    "by_file": """
import pytest

pytestmark = pytest.mark.oracle
pytest.importorskip("a_reference_that_is_absent")
""",
}

SLOW_FIRST = """
import pytest

@pytest.mark.slow
def test_long():
    pass

def test_short():
    pass
"""


def run_pytest(folder: Path, *, required: str) -> str:
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  oracle\n  slow\n", encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=folder,
        env={**environment, "CUTAWAY_REQUIRE_ORACLES": required},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.fixture
def skipping(tmp_path: Path) -> Path:
    for name, source in SKIPPING.items():
        (tmp_path / f"test_{name}.py").write_text(source, encoding="utf-8")
    return tmp_path


def test_a_skipped_oracle_fails_when_oracles_are_required(skipping: Path) -> None:
    whole_files = run_pytest(skipping, required="1")
    assert "ERROR test_by_file.py" in whole_files
    (skipping / "test_by_file.py").unlink()
    output = run_pytest(skipping, required="1")
    assert "FAILED test_by_call.py::test_compares" in output
    assert "ERROR test_by_fixture.py::test_compares" in output
    assert "1 failed, 1 skipped, 1 error" in output
    assert "an oracle is required here, but was skipped" in output


def test_a_skipped_oracle_is_a_skip_when_oracles_are_optional(skipping: Path) -> None:
    assert "= 4 skipped in" in run_pytest(skipping, required="")


def test_quick_tests_run_before_slow_ones(tmp_path: Path) -> None:
    (tmp_path / "test_order.py").write_text(SLOW_FIRST, encoding="utf-8")
    output = run_pytest(tmp_path, required="")
    assert output.index("PASSED test_order.py::test_short") < output.index("::test_long")
