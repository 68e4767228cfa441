"""Examples from lines of JSON, and lines that are refused by file, number and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutaway.core.errors import ConfigError
from cutaway.train.data.examples import read_conversations, read_documents, read_pairs


def written(folder: Path, *lines: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    return path


def test_texts_come_by_line_or_as_one_file(tmp_path: Path) -> None:
    path = written(tmp_path, {"text": "one\u2028line"}, {"text": "two", "source": "x"})
    assert [each.text for each in read_documents(path)] == ["one\u2028line", "two"]
    plain = tmp_path / "plain.txt"
    plain.write_text("all\nof it\n", encoding="utf-8")
    assert [each.text for each in read_documents(plain)] == ["all\nof it\n"]


def test_conversations_have_messages_and_tools(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    path = written(tmp_path, {"messages": turns}, {"messages": turns, "tools": tools})
    first, second = read_conversations(path)
    assert [message.role for message in first.messages] == ["user", "assistant"]
    assert first.tools is None and second.tools == tuple(tools)


def test_pairs_come_with_and_without_a_prompt(tmp_path: Path) -> None:
    prompt = {"role": "user", "content": "Hi"}
    good, bad = ({"role": "assistant", "content": text} for text in ("Hello", "No"))
    path = written(
        tmp_path,
        {"prompt": "Hi", "chosen": "Hello", "rejected": "No"},
        {"prompt": [prompt], "chosen": [good], "rejected": [bad]},
        {"chosen": [prompt, good], "rejected": [prompt, bad]},
    )
    first, second, third = read_pairs(path)
    assert first == second == third
    chosen, rejected = first.conversations
    assert [m.text for m in chosen.messages] == ["Hi", "Hello"]
    assert [m.text for m in rejected.messages] == ["Hi", "No"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"texts": "x"}, "line 1: text is null; it must be a string"),
        (["x"], "it must be a JSON object"),
    ],
)
def test_a_line_without_a_text_is_refused(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_documents(written(tmp_path, line))


def test_faults_name_file_line_and_field(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    path = written(tmp_path, {"messages": turns}, {"messages": [{"role": "user", "content": 3}]})
    with pytest.raises(ConfigError, match=r"data\.jsonl, line 2: messages\[0\]\.content is 3"):
        read_conversations(path)
    path.write_text('{"text": "a"}\n{"text": ', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        read_documents(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no line with an example"):
        read_documents(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_documents(tmp_path / "absent.jsonl")
