"""Where a model's files keep its chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gguf_bytes as b
from cutaway.engine.loading.template_of import folder_template, gguf_template
from cutaway.host import gguf_file


def test_n03_a_template_is_found_wherever_it_is_kept(tmp_path: Path) -> None:
    assert folder_template(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "third"}))
    assert folder_template(tmp_path) == "third"
    config = tmp_path / "tokenizer_config.json"
    config.write_text("{}")
    assert folder_template(tmp_path) == "third"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "second"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert folder_template(tmp_path) == "second"
    (tmp_path / "chat_template.jinja").write_text("first")
    assert folder_template(tmp_path) == "first"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"tokenizer.chat_template": "a"}, "a"),
        ({"tokenizer.chat_template.default": "b", "tokenizer.chat_template.rag": "c"}, "b"),
        ({"tokenizer.chat_template": "a", "tokenizer.chat_template.default": "b"}, "a"),
    ],
)
def test_a_gguf_files_templates(tmp_path: Path, keys: dict[str, str], expected: str | None) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b.gguf([b.key(k, b.STRING, b.string(v)) for k, v in keys.items()]))
    assert gguf_template(gguf_file.read(path)) == expected
