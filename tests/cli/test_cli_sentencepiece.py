"""`cutaway tokenize` and `detokenize` over a SentencePiece vocabulary in a model's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from program import Cutaway
from spm_trained import trained


@pytest.fixture
def model(tiny_folder: Path, tmp_path: Path) -> str:
    """A tiny model whose folder has a tokenizer.model."""
    for name in ("config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe", "llama"))
    return f"random:{tmp_path / 'config.json'}"


def test_a_text_comes_back_from_its_tokens(cutaway: Cutaway, model: str) -> None:
    text = " The model, \u6f22\U0001f999"
    cut = cutaway("tokenize", "-m", model, "--json", text).json
    assert cut["tokens"][0]["text"] == " "  # the blank that the vocabulary puts in front
    assert cut["token_ids"] != cutaway("tokenize", "-m", model, "--json", text.strip()).json
    back = cutaway("detokenize", "-m", model, "--json", *map(str, cut["token_ids"])).json
    assert back["text"] == text


@pytest.mark.parametrize(
    ("damaged", "field"),
    [(lambda whole: whole[:-1], "field "), (lambda whole: whole + b"\x0a\x7f", "field 1 has 127")],
    ids=["cut", "a field longer than the file"],
)
def test_a_damaged_vocabulary_is_one_line_that_names_file_and_field(
    cutaway: Cutaway, model: str, damaged: Callable[[bytes], bytes], field: str
) -> None:
    path = Path(model.removeprefix("random:")).with_name("tokenizer.model")
    path.write_bytes(damaged(path.read_bytes()))
    ended = cutaway("tokenize", "-m", model, "a")
    assert ended.code == 3
    told = f"error: tokenizer.model: (whole file): {field}"
    assert ended.err.splitlines()[0].startswith(told)
