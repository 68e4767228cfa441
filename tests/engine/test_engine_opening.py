"""A model's text side, read beside: the same as read at once, and faults wait until it is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.engine.loading.text_side import Opening
from cutaway.engine.loading.tokenizer_of import tokenizer_of
from cutaway.weights.find.find import Found, find
from gguf_bytes import STRING, gguf, key, small_valid, string
from spm_trained import trained


def written(path: Path, content: bytes) -> Found:
    path.write_bytes(content)
    return find(str(path))


def test_a_folders_tokenizer_is_the_one_that_is_read_at_once(tmp_path: Path) -> None:
    values = tiny.config(vocab_size=900, bos_token_id=1, eos_token_id=2)
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe", "llama"))
    found = find(f"random:{tmp_path}")
    opening = Opening(found)
    assert opening.found is found
    assert opening.tokenizer().fingerprint == tokenizer_of(found).fingerprint
    assert opening.tokenizer() is opening.tokenizer()


def test_a_faulty_tokenizer_is_told_when_it_is_taken(tmp_path: Path) -> None:
    keys = [key("tokenizer.ggml.model", STRING, string("bert"))]
    opening = Opening(written(tmp_path / "x.gguf", gguf(keys)))
    assert opening.file().text("tokenizer.ggml.model") == "bert"
    with pytest.raises(UnsupportedModelError, match=r'ggml\.model is "bert"'):
        opening.tokenizer()


def test_a_cut_file_is_told_by_both(tmp_path: Path) -> None:
    opening = Opening(written(tmp_path / "x.gguf", small_valid()[:40]))
    with pytest.raises(ModelFormatError, match="cut short") as of_file:
        opening.file()
    with pytest.raises(ModelFormatError) as of_tokenizer:
        opening.tokenizer()
    assert str(of_tokenizer.value) == str(of_file.value)
