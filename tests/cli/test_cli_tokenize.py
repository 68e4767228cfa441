"""`cutaway tokenize` and `cutaway detokenize`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli.detokenize import parse_ids
from cutaway.core.errors import RequestError
from program import Cutaway, spawn

TEXTS = ["hello", "naïve café ☕", "日本語", "a\r\nb\t\0c\n", "", "<eos>"]


def test_json_has_ids_and_tokens_with_their_bytes(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("tokenize", "-m", tiny_model, "--json", "--", "é!")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json == {
        "token_ids": [195, 169, 33],
        "tokens": [
            {"id": 195, "text": "\\xc3", "bytes": "c3"},
            {"id": 169, "text": "\\xa9", "bytes": "a9"},
            {"id": 33, "text": "!", "bytes": "21"},
        ],
    }


def test_the_table_shows_what_cannot_be_seen(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("tokenize", "-m", tiny_model, "é \n[b]")
    assert ended.out == (
        " id  bytes  text\n"
        "195  c3     '\\xc3'\n"
        "169  a9     '\\xa9'\n"
        " 32  20     ' '\n"
        " 10  0a     '\\n'\n"
        " 91  5b     '['\n"
        " 98  62     'b'\n"
        " 93  5d     ']'\n"
    )
    assert ended.err == "[7 tokens, 6 characters]\n"


def test_a_text_that_looks_like_a_flag_comes_after_two_dashes(
    cutaway: Cutaway, tiny_model: str
) -> None:
    ended = cutaway("tokenize", "-m", tiny_model, "--json", "--", "--bos")
    assert ended.json["token_ids"] == list(b"--bos")


def test_control_tokens_need_their_flag(cutaway: Cutaway, tiny_model: str) -> None:
    common = ["tokenize", "-m", tiny_model, "--json"]
    assert cutaway(*common, "--", "<eos>").json["token_ids"] == list(b"<eos>")
    assert cutaway(*common, "--control", "--", "<eos>").json["token_ids"] == [257]


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_tokenized_comes_back_byte_for_byte(
    cutaway: Cutaway, tiny_model: str, text: str
) -> None:
    tokens = cutaway("tokenize", "-m", tiny_model, "--json", stdin=text)
    back = cutaway("detokenize", "-m", tiny_model, stdin=tokens.out)
    assert (back.code, back.out, back.err) == (0, text, "")


def test_detokenize_takes_ids_as_arguments(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("detokenize", "-m", tiny_model, "104", "105,33", "--json")
    assert ended.json == {"token_ids": [104, 105, 33], "text": "hi!", "bytes": "686921"}


def test_detokenize_leaves_control_tokens_out_when_asked(cutaway: Cutaway, tiny_model: str) -> None:
    assert cutaway("detokenize", "-m", tiny_model, "104", "257").out == "h<eos>"
    assert cutaway("detokenize", "-m", tiny_model, "104", "257", "--skip-control").out == "h"


def test_an_answer_with_ids_beyond_the_tokenizer_can_be_read_back(
    cutaway: Cutaway, tiny_model: str
) -> None:
    ended = cutaway("detokenize", "-m", tiny_model, "104", "300")
    assert ended.out == "h<300>"
    assert ended.err == "warning: 300 is no token; ids go from 0 to 257.\n"


@given(st.lists(st.integers(0, 2**31)))
def test_ids_are_read_from_every_form(ids: list[int]) -> None:
    words = [str(each) for each in ids]
    forms = [" ".join(words), ", ".join(words), "\n".join(words), json.dumps(ids)]
    for form in [*forms, json.dumps({"token_ids": ids, "tokens": []})]:
        assert parse_ids(form) == ids


@pytest.mark.parametrize(
    "text", ["one", "1 -2", "1.5", "[true]", '{"ids": [1]}', "[[1]]", "null", '"12"x', "9" * 40]
)
def test_what_is_no_id_is_named(text: str) -> None:
    with pytest.raises(RequestError, match="give integers from 0 up, or JSON with token_ids"):
        parse_ids(text)


def test_tokenizers_are_read_without_torch(tiny_model: str) -> None:
    code = (
        "import sys; from cutaway.cli.main import run;"
        f"assert run(['tokenize', '-m', {tiny_model!r}, 'hi']) == 0;"
        f"assert run(['detokenize', '-m', {tiny_model!r}, '1']) == 0;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    import subprocess
    import sys

    from program import environment

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_without_a_tokenizer_is_named(cutaway: Cutaway, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").touch()
    ended = cutaway("tokenize", "-m", str(tmp_path), "hi")
    assert ended.code == 3
    assert "tokenizer.json" in ended.err


def test_the_installed_program_tokenizes(tiny_model: str) -> None:
    ended = spawn("tokenize", "-m", tiny_model, "--json", "--", "hi")
    assert (ended.code, ended.json["token_ids"], ended.err) == (0, [104, 105], "")
