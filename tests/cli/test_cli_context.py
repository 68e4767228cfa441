"""`cutaway bench context` as it is called."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("The cat sat on the mat. " * 20, encoding="utf-8")
    return str(path)


def test_prints_a_table_or_json(cutaway, tiny_model, text):
    asked = ("bench", "context", "--model", tiny_model, "--text", text, "--tokens", "320")
    made = cutaway(*asked, "--scaling", "yarn", "--json")
    assert made.code == 0, made.err
    assert [each["name"] for each in made.json["readings"]] == ["anew", "unscaled", "yarn"]
    assert made.json["starts"] == [0, 64, 128, 192, 256] and made.json["trained"] == 256
    shown = cutaway(*asked, "--scaling", "off")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0].split() == ["POSITIONS", "TRAINED", "ANEW", "UNSCALED"]
    figure = f"{made.json['readings'][1]['perplexities'][4]:,.2f}"
    assert lines[5].split()[:4] == ["256", "to", "319", "behind"]
    assert lines[5].split()[5] == figure
    assert "scalings by 1.25" in lines[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--text", "nowhere.txt"], "nowhere.txt cannot be read as UTF-8 text"),
        (["--tokens", "9000"], "tokens is 9,000, and "),
        (["--tokens", "300"], "tokens is 300; it must be at least 320"),
        (["--scaling", "glue"], 'scaling holds "glue"; it must be of linear'),
    ],
)
def test_wrong_arguments_are_one_line(cutaway, tiny_model, text, given, message):
    ended = cutaway(
        "bench", "context", "--model", tiny_model, "--text", text, "--tokens", "400", *given
    )
    assert ended.code == 2
    assert message in ended.err
