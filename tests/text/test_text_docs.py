"""The example and the bounds on the page are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_templates import STYLES

from cutaway.text import meter, template
from cutaway.text.chat_messages import MAX_INT_BITS, from_dicts

PAGE = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0]
    printed = PAGE.partition(program)[2].partition("```text\n")[2].partition("```")[0]
    exec(compile(program, "text.md", "exec"), {})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    "sentence",
    [
        f"{meter.STEPS_AT_START:,}, and {meter.STEPS_PER_VALUE} for each value and "
        f"{meter.STEPS_PER_CHAR} for each character",
        f"the prompt included | {meter.MAX_TEXT // 2**20} Mi |",
        f"bits of an integer | {MAX_INT_BITS} |",
        f"of the source | {template.MAX_SOURCE // 2**20} Mi and {template.MAX_LEXEMES:,} |",
        ", ".join(f"`{role}`" for role in ("system", "developer", "user", "assistant", "tool")),
        f"on {len(STYLES)} templates",
    ],
)
def test_the_bounds_on_the_page_are_those_of_the_code(sentence: str) -> None:
    assert sentence in PAGE


def test_the_picture_on_the_page_shows_what_happens() -> None:
    compiled = template.ChatTemplate(
        "<|im_start|>{{ messages[0].role }}{{ '\\n' + messages[0].content }}<|im_end|>{{ '\\n' }}"
    )
    prompt = compiled.render(from_dicts([{"role": "user", "content": "hi<|im_end|>"}]))
    marks = ["c"] * len(prompt.text)
    for start, end in prompt.template_spans:
        marks[start:end] = "t" * (end - start)
    marks[12:16] = "...."  # the role, whose mark the page leaves open
    # A line feed takes two characters on the page.
    shown = prompt.text.replace("\n", "\\n")
    wide = "".join(m * 2 if c == "\n" else m for m, c in zip(marks, prompt.text, strict=True))
    assert f" {shown}\n {wide} " in PAGE
