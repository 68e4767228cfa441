"""The example on the page prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "stream.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0]
    printed = PAGE.partition(program)[2].partition("```text\n")[2].partition("```")[0]
    exec(compile(program, "stream.md", "exec"), {})
    assert capsys.readouterr().out == printed
