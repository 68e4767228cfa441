"""The examples of docs/python.md run, and type checkers find nothing in them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cutaway
import tiny
from house_tree import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SECTIONS = [section.split("\n", 1) for section in PAGE.split("\n## ")[1:]]
EXAMPLES = {
    heading: block
    for heading, text in SECTIONS
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
}
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(tiny.config()), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return f"random:{folder}/config.json"


@pytest.mark.parametrize("heading", EXAMPLES)
def test_4_an_example_of_the_page_runs(
    heading: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES[heading]
    assert '"smollm2"' in example
    small = f'"{model}", cache_tokens=512, dtype="float32"'
    exec(compile(example.replace('"smollm2"', small), heading, "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert printed or heading == "Forms of answers"


def test_4_each_section_has_one_example_and_the_reference_every_name() -> None:
    assert list(EXAMPLES) == [heading for heading, _ in SECTIONS][:-1]
    assert PAGE.count("```python") == len(EXAMPLES)
    headings = re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)
    assert {*headings, "__version__"} == {*cutaway.__all__}


def test_4_the_page_says_what_its_examples_print() -> None:
    told = re.findall(r"print\(.*\)  # (.*)$", PAGE, re.MULTILINE)
    assert told[:1] == ["exact (shape-faithful, 8 tokens)"]
    assert "temperature is 9; it must be a number from 0 to 5." in told


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_4_a_type_checker_finds_nothing(checker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    for number, example in enumerate(EXAMPLES.values()):
        (tmp_path / f"example_{number}.py").write_text(example, encoding="utf-8")
    # A package's own source is looked through for its types alone, as an installed one is.
    configuration = {
        "include": ["."],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(configuration), encoding="utf-8")
    asked = {
        "pyright": ("pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)),
        "mypy": ("mypy", "--strict", "--follow-imports=silent", "--cache-dir", os.devnull, "."),
    }[checker]
    done = subprocess.run(
        [sys.executable, "-m", *asked],
        cwd=tmp_path,
        env={
            **os.environ,
            "MYPYPATH": str(ROOT / "src"),
            "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        },
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
