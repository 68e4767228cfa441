"""A tokenizer beside a model of fewer rows: allowed for control tokens at the end, else refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from cutaway import LLM
from cutaway.core.errors import RequestError, UnsupportedModelError
from spm_trained import trained


def folder(path: Path, num_rows: int) -> str:
    """A tiny model over 900 pieces and a token for images, which is the 901st."""
    values = tiny.config(vocab_size=num_rows, bos_token_id=1, eos_token_id=2)
    image = {"added_tokens_decoder": {"900": {"content": "<image>", "special": True}}}
    (path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(image), encoding="utf-8")
    (path / "tokenizer.model").write_bytes(trained("bpe", "llama"))
    return f"random:{path / 'config.json'}"


def test_a_control_token_without_a_row_does_no_harm(tmp_path: Path) -> None:
    llm = LLM(folder(tmp_path, 900), dtype="float32", cache_tokens=256)
    assert llm.engine.model.tokenizer.vocab_size == 901
    assert 900 not in llm.encode("<image>")
    with pytest.raises(RequestError, match="ids go from 0 to 899"):
        llm.generate("<image>", control=True)


def test_a_piece_without_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="ids up to 899 and the model 899 rows"):
        LLM(folder(tmp_path, 899), dtype="float32", cache_tokens=256)
