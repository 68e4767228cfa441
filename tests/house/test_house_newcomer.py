"""What the pages tell of adding a thing is done to a copy of the package, and it is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from house_tree import PACKAGE, ROOT

pytestmark = pytest.mark.slow

RUN = ("--max-tokens", "4", "--temperature", "0")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__", "_web")
    return Path(shutil.copytree(PACKAGE, tmp_path / "src" / "cutaway", ignore=ignored))


def blocks(page: str, heading: str) -> list[str]:
    """The Python that a page shows below a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def put_before(path: Path, line: str, added: str) -> None:
    """A line of a file, before another."""
    text = path.read_text(encoding="utf-8")
    assert text.count(line) == 1, line
    path.write_text(text.replace(line, added + line), encoding="utf-8")


def cutaway(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cutaway", *arguments],
        env={**os.environ, "PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1"},
        cwd=copy.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def model(folder: Path, **changes: object) -> str:
    (folder / "config.json").write_text(json.dumps(tiny.config(**changes)), encoding="utf-8")
    return f"random:{folder / 'config.json'}"


def test_a_view_is_added_as_its_page_tells(copy: Path, tmp_path: Path) -> None:
    (file,) = blocks("views.md", "Adding one")
    (copy / "views" / "surprise.py").write_text(file, encoding="utf-8")
    put_before(copy / "views" / "__init__.py", "    template,\n", "    surprise,\n")
    put_before(copy / "views" / "__init__.py", "    logits.VIEW,\n", "    surprise.VIEW,\n")
    asked = ("view", "Hello", "--view", "surprise", "-m", model(tmp_path), *RUN)
    drawn = cutaway(copy, *asked)
    assert "How much did each token say?" in drawn and "bits in all" in drawn
    shown = json.loads(cutaway(copy, *asked, "--json"))
    assert "surprise" in json.dumps(shown) and "bits" in json.dumps(shown)
    every = cutaway(copy, "view", "Hello", "-m", model(tmp_path), *RUN)
    assert "How much did each token say?" in every, "it is one of all views"


def test_an_architecture_is_one_file_and_one_line(copy: Path, tmp_path: Path) -> None:
    (file,) = blocks("architectures.md", "Adding one")
    (copy / "models" / "mine.py").write_text(f'"""Mine: made by the page."""\n\n{file}', "utf-8")
    table = copy / "models" / "__init__.py"
    put_before(table, '    "MistralForCausalLM"', '    "MineForCausalLM": "mine",\n')
    name = model(tmp_path, architectures=["MineForCausalLM"], model_type="mine")
    answer = json.loads(cutaway(copy, "complete", "Hello", "--json", "-m", name, *RUN))
    assert answer["usage"]["completion_tokens"] == 4
    assert "parameters" in cutaway(copy, "models", "estimate", name)
    drawn = cutaway(copy, "view", "Hello", "--view", "attention", "-m", name, *RUN)
    assert "exact" in drawn, "the record replays"
