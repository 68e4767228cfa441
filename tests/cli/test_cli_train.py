"""`cutaway train`: from text to an assistant by commands, and errors that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutaway.cli.main import run
from cutaway.cli.terminal import exits

TEXT = "A vocabulary is learned from this very sentence, and a model from the same. "
TALK = {
    "messages": [
        {"role": "user", "content": "A model?"},
        {"role": "assistant", "content": "the same"},
    ]
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 8, encoding="utf-8")
    (tmp_path / "talk.jsonl").write_text(json.dumps(TALK), encoding="utf-8")
    (tmp_path / "bpe.toml").write_text('out = "vocab"\ndata = "text.txt"\nsize = 290\n')
    (tmp_path / "pretrain.toml").write_text(
        'out = "base"\ndata = "text.txt"\nheld_out = "text.txt"\nvocabulary = "vocab"\n'
        "updates = 4\nrate = 1e-2\ncontext = 32\ntokens = 64\nsave_every = 2\n"
        "[model]\nhidden_size = 16\nintermediate_size = 16\nnum_hidden_layers = 1\n"
        "num_attention_heads = 2\nmax_position_embeddings = 64\n"
    )
    (tmp_path / "sft.toml").write_text(
        'out = "assistant"\nmodel = "base/model"\ndata = "talk.jsonl"\n'
        "updates = 3\nrate = 1e-2\ncontext = 64\ntokens = 64\n"
    )
    return tmp_path


def test_a_vocabulary_a_base_model_and_an_assistant(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "bpe", "bpe.toml"]) == exits.OK
    assert capsys.readouterr().out == "vocab: 290 tokens\n"
    assert run(["train", "pretrain", "pretrain.toml"]) == exits.OK
    said = capsys.readouterr()
    assert said.out == "base/model\n"
    assert "bits_per_byte" in said.err and "pretrain: 4 of 4 loss" in said.err
    assert run(["train", "pretrain", "pretrain.toml"]) == exits.OK
    assert "going on at update 4 of 4" in capsys.readouterr().err
    assert run(["train", "sft", "sft.toml", "--show", "3"]) == exits.OK
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("example 1: ")
    scored = [line.split(maxsplit=2)[2] for line in shown[1:] if " scored " in line]
    assert scored[-1] == "'<|im_end|>'"
    assert "".join(each.strip("'") for each in scored[:-1]) == "the same"
    assert not (folder / "assistant").exists()
    assert run(["train", "sft", "sft.toml", "updates=2"]) == exits.OK
    assert capsys.readouterr().out == "assistant/model\n"
    assert run(["tokenize", "--model", "assistant/model", "the same"]) == exits.OK


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pretrain", "pretrain.toml", "rats=1"], "rats is no setting of this stage; did you mean"),
        (["pretrain", "pretrain.toml", "rate=x"], 'rate is "x"; it must be a number'),
        (["pretrain", "absent.toml"], "absent.toml cannot be read"),
        (["pretrain", "pretrain.toml", "tokens=16"], "tokens is 16; it must be at least context"),
        (["pretrain", "pretrain.toml", "context=65"], "context is 65; it must be at most 64"),
        (["pretrain", "pretrain.toml", "model.vocab_size=3"], "model.vocab_size is no setting"),
        (["bpe", "bpe.toml", "size=3"], "size is 3; it must be an integer of at least 259"),
    ],
)
def test_what_is_wrong_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    if arguments[0] == "pretrain":
        assert run(["train", "bpe", "bpe.toml"]) == exits.OK
    capsys.readouterr()
    assert run(["train", *arguments]) == exits.USAGE
    assert words in capsys.readouterr().err
