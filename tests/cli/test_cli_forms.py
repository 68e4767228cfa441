"""Forms of an answer in `cutaway complete` and `chat`: held to, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from program import Cutaway

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bonn"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
LARK = 'start: "a" MORE\nMORE: /b{2,4}/\n'
COMMON = ("--temperature", "2", "--seed", "3", "--max-tokens", "150")


@pytest.mark.parametrize("is_file", [False, True])
def test_a_schema_is_a_file_or_a_text(
    cutaway: Cutaway, tiny_model: str, tmp_path: Path, is_file: bool
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    schema = str(tmp_path / "schema.json") if is_file else json.dumps(SCHEMA)
    ended = cutaway("complete", "hello", "-m", tiny_model, *COMMON, "--json-schema", schema)
    assert ended.code == 0, ended.err
    jsonschema.validate(json.loads(ended.out), SCHEMA)


def test_answers_are_of_the_form_that_was_asked_for(
    cutaway: Cutaway, tiny_model: str, tmp_path: Path
) -> None:
    (tmp_path / "form.lark").write_text(LARK, encoding="utf-8")
    cases = {
        ("--regex", "[0-9]{3}-x"): lambda text: text[3:] == "-x" and text[:3].isdigit(),
        ("--choice", "red", "--choice", "green"): {"red", "green"}.__contains__,
        ("--grammar", str(tmp_path / "form.lark")): {"abb", "abbb", "abbbb"}.__contains__,
    }
    for options, holds in cases.items():
        ended = cutaway("complete", "hello", "-m", tiny_model, *COMMON, *options, "--json")
        assert ended.code == 0, ended.err
        assert holds(ended.json["text"]) and ended.json["finish_reason"] == "stop"
    loose = ("--json-object", "--max-tokens", "2", "--no-stream")
    assert cutaway("complete", "h", "-m", tiny_model, *loose).out.startswith("{")


def test_a_chat_answers_every_line_in_that_form(cutaway: Cutaway, tiny_model: str) -> None:
    options = ("--choice", "yes", "--choice", "no")
    ended = cutaway("chat", tiny_model, *COMMON, *options, stdin="Is it?\nAnd now?\n")
    assert ended.code == 0, ended.err
    said = ended.out.split()
    assert len(said) == 2 and set(said) <= {"yes", "no"}


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("complete", ("--regex", "a", "--json-object"), "--json-object and --regex are given"),
        ("complete", ("--json-schema", "no-such-file"), "--json-schema is no-such-file, which"),
        ("complete", ("--json-schema", "{"), "it must be a JSON schema"),
        ("complete", ("--json-schema", '{"type": "object", "minProperties": 1}'), "minProperties"),
        ("complete", ("--grammar", "."), "--grammar is ., which cannot be read"),
        ("complete", ("--regex", ""), "grammar is an empty regex"),
        ("complete", ("--regex", "("), "grammar"),
        ("complete", ("--choice", ""), "an empty choice"),
        ("chat", ("--regex", "a", "--tools"), "--tools and a form of the answer"),
    ],
)
def test_what_cannot_be_held_to_is_one_line(
    cutaway: Cutaway, tiny_model: str, command: str, options: tuple[str, ...], words: str
) -> None:
    ended = cutaway(command, "-m", tiny_model, *options, stdin="hello\n")
    assert ended.code == 2 and ended.out.strip() == ""
    assert words in ended.err and "Traceback" not in ended.err
