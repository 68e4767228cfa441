"""Ids equal the public tokenizers' on the vocabularies of Mistral and Gemma 3."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tokens_oracles import ALPHABET, CODE, LANGUAGES, ODD, WORDS

from cutaway.host import gguf_file
from cutaway.tokens.files.tokenizer_files import (
    load_model_file,
    load_tokenizer_json,
    tokenizer_from_gguf,
)
from cutaway.tokens.tokenizer import Tokenizer
from oracles import PROSE, gemma3_gguf, model_file, prose, tokenizer_json
from trials import patience

pytestmark = pytest.mark.oracle

SOURCES = Path(__file__).resolve().parents[2] / "src"
MISTRAL = ("v1", "v2", "v3")
NAMES = (*MISTRAL, "gemma3", "gemma3-gguf")
# Mistral's have no token for the names; Gemma's "<h1>" is one that users may write.
MARKUP = ["<s>", "</s>", "[INST]", "<bos>", "<end_of_turn>", "<h1>a</h1>", "<0x41>"]
TEXTS = st.text(ALPHABET)
BLANKS = [" " * count for count in (2, 3, 7, 16, 31)] + ["\n" * 5, "\t\t\t", "a  b   c", " > </ "]


@cache
def ours(name: str) -> Tokenizer:
    if name in MISTRAL:
        return load_model_file(model_file(name))
    if name == "gemma3":
        return load_tokenizer_json(tokenizer_json("gemma3"))
    return tokenizer_from_gguf(gguf_file.read(gemma3_gguf()).metadata, file="gemma3.gguf")


@cache
def theirs(name: str):
    """Ids of plain text, and the text of ids."""
    if name in MISTRAL:
        import sentencepiece

        reference = sentencepiece.SentencePieceProcessor(str(model_file(name)))
        return reference.encode, reference.decode
    if name == "gemma3-gguf":
        return theirs("gemma3")  # the same vocabulary, of which reading takes seconds
    from tokenizers import Tokenizer as HfTokenizer

    reference = HfTokenizer.from_file(str(tokenizer_json("gemma3")))
    reference.encode_special_tokens = True
    return (
        lambda text: reference.encode(text, add_special_tokens=False).ids,
        lambda ids: reference.decode(ids, skip_special_tokens=True),
    )


def assert_ids_equal(name: str, texts: list[str]) -> None:
    encode, decode = theirs(name)
    for text in texts:
        found, expected = ours(name).encode(text), encode(text)
        if found != expected:  # a bare assert would print megabytes
            pairs = enumerate(zip(found, expected, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(found), len(expected)))
            around = slice(max(0, at - 3), at + 5)
            pytest.fail(f"{name}, token {at}: {found[around]}, reference {expected[around]}")
        assert ours(name).decode(found) == decode(found), name


@pytest.mark.parametrize("name", NAMES)
def test_scripts_code_markup_and_blanks(name):
    texts = [LANGUAGES, CODE, LANGUAGES[::-1], *LANGUAGES.split("\n"), *ODD, *MARKUP, *BLANKS, ""]
    assert_ids_equal(name, texts)


@pytest.mark.parametrize("name", NAMES)
def test_a_novel_and_our_own_sources(name):
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.py"))]
    assert_ids_equal(name, [prose("moby-dick")[:60_000], *sources[:: patience(8, in_ci=32)]])


def test_a14_text_is_stable_however_often_it_is_encoded():
    for name in ("v1", "gemma3"):
        text = LANGUAGES + CODE
        for _ in range(5):
            ids = ours(name).encode(text)
            text = ours(name).decode(ids)
            assert text == LANGUAGES + CODE
        assert ours(name).encode(text) == ids


def test_gemma_from_gguf_and_from_json_begin_and_end_alike():
    from_json, from_gguf = ours("gemma3"), ours("gemma3-gguf")
    text = "The <h1>capital</h1> of France\n\n\tis  "
    assert from_json.encode(text, bos=True) == from_gguf.encode(text, bos=True)
    assert from_json.bos_token_id == from_gguf.bos_token_id == 2
    for name in ("<bos>", "<start_of_turn>", "<end_of_turn>"):
        ids = [each.encode(f"a{name}b", control=True) for each in (from_json, from_gguf)]
        assert from_gguf.control_tokens[name] in ids[1]
        assert ids[0] == ids[1] or name not in from_json.control_tokens


def test_tokens_that_gemma_does_not_use_are_plain_text_from_the_gguf_alone():
    # The GGUF calls them control tokens, tokenizer.json ordinary added ones.
    assert ours("gemma3").encode("<unused7>") == [13]
    assert len(ours("gemma3-gguf").encode("<unused7>")) > 1
    assert ours("gemma3-gguf").encode("<unused7>", control=True) == [13]


def test_a06_a_name_in_plain_text_is_no_control_token():
    for name in ("v3", "gemma3-gguf"):
        tokenizer = ours(name)
        for control in list(tokenizer.control_tokens)[:200]:
            ids = tokenizer.encode(f"say {control}!")
            assert not tokenizer.control_ids.intersection(ids)
            assert tokenizer.decode(ids) == f"say {control}!"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v3", "gemma3-gguf"])
@pytest.mark.parametrize("text", PROSE)
def test_the_first_250_000_characters_of_all_small_prose(name, text):
    """A quarter of them in CI."""
    lines = prose(text)[:250_000].splitlines(keepends=True)
    size = max(1, len(lines) // 100)
    parts = ["".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    assert_ids_equal(name, parts[:: patience(1, in_ci=4)])


@settings(max_examples=100)
@given(TEXTS)
def test_100_odd_strings(text):
    for name in NAMES:
        assert_ids_equal(name, [text.translate(WORDS)])


@pytest.mark.slow
@settings(max_examples=patience(4_000, in_ci=1_000), suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_4_000_odd_strings_in_mistrals_vocabulary(text):
    assert_ids_equal("v3", [text.translate(WORDS)])


@pytest.mark.slow
@settings(max_examples=patience(1_000, in_ci=250), suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_1_000_odd_strings_in_gemmas_vocabulary(text):
    for name in ("gemma3", "gemma3-gguf"):
        assert_ids_equal(name, [text.translate(WORDS)])
