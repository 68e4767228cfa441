"""Ids and texts equal sentencepiece's and HF's, on models that are trained here."""

# ruff: noqa: RUF001 - characters that look alike are what is tested
from __future__ import annotations

import base64
import json
import random
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from cutaway.stream.detokenize import Detokenizer
from cutaway.tokens.files.model_file import ModelFile, PieceType, parse_model_file
from cutaway.tokens.files.tokenizer_files import load_folder, load_model_file, tokenizer_from_gguf
from cutaway.tokens.sentencepiece.sentencepiece import SentencePiece
from cutaway.tokens.tokenizer import Tokenizer
from spm_trained import SETTINGS, lines, trained

MODELS = [(kind, name) for kind in ("bpe", "unigram") for name in SETTINGS]

WORDS = ["<h1>", "<turn>", "</s>", "<0x41>", "the ", "model", "00", "--", "aaa", "e\u0301", "  "]
CHARACTERS = [
    *"abcdefgh ETAOIN  \t\n\r0123456789.,-<>|",
    *"\u2581é\u212bﬁ①２\u3000\u00a0\u200b\u00a8\ufdfa漢字🦙\x00\x7f한글\u1100\u1161\ufeff\ufffd",
]
ODD = st.lists(st.sampled_from([*WORDS, *CHARACTERS]), max_size=40).map("".join)


@cache
def ours(kind: str, name: str, folder: Path) -> SentencePiece:
    path = folder / "tokenizer.model"
    path.write_bytes(trained(kind, name))
    return load_model_file(path)


@cache
def theirs(kind: str, name: str) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=trained(kind, name))


@pytest.fixture(params=MODELS, ids="-".join, scope="module")
def both(request, tmp_path_factory):
    kind, name = request.param
    return ours(kind, name, tmp_path_factory.mktemp(name)), theirs(kind, name)


def random_texts(count: int) -> list[str]:
    rng = random.Random(3)
    return ["".join(rng.choices([*WORDS, *CHARACTERS], k=rng.randint(0, 60))) for _ in range(count)]


def assert_alike(tokenizer, reference, text):
    """The same ids, or with unigram pieces another cut that is worth as much.

    Sums are rounded to 32 bits on the way, so that of two equal cuts either may win: about one
    text in 10,000, of some models.
    """
    ids, expected = tokenizer.encode(text), reference.encode(text)
    if ids == expected:
        return
    is_unigram = parse_model_file(reference.serialized_model_proto(), file="x").kind == 1
    assert is_unigram and reference.decode(ids) == reference.decode(expected), text
    worth, wanted = (sum(map(reference.get_score, each)) for each in (ids, expected))
    assert worth == pytest.approx(wanted, rel=1e-6), text


def test_ids_and_texts_equal_sentencepiece(both):
    tokenizer, reference = both
    for text in [*random_texts(300), *lines()[::10], *lines()[-4:]]:
        ids = reference.encode(text)
        assert_alike(tokenizer, reference, text)
        assert tokenizer.decode(ids) == reference.decode(ids), text


@pytest.mark.parametrize("text", ["", " ", "  ", "\u2581", "\u2581\u2581", "\n", "\u3000", "\x00"])
def test_blanks_alone_equal_sentencepiece(both, text):
    tokenizer, reference = both
    assert tokenizer.encode(text) == reference.encode(text)


def test_long_words_equal_sentencepiece(both):
    tokenizer, reference = both
    for text in ("a" * 3_000, "00" * 400, "ab" * 500 + "漢" * 300):
        assert_alike(tokenizer, reference, text)


def test_a14_text_is_stable_after_one_round(both):
    tokenizer, _ = both
    text = tokenizer.decode(tokenizer.encode("  a  model\n\nof 100 tokens  "))
    for _ in range(3):
        again = tokenizer.decode(tokenizer.encode(text))
        assert again == text


@pytest.mark.slow
@settings(max_examples=600)
@given(ODD)
def test_600_odd_strings_in_each_of_14_models(tmp_path_factory, text):
    for kind, name in MODELS:
        tokenizer = ours(kind, name, _folder(tmp_path_factory, kind, name))
        assert_alike(tokenizer, theirs(kind, name), text)


_FOLDERS: dict[tuple[str, str], Path] = {}


def _folder(factory, kind: str, name: str) -> Path:
    if (kind, name) not in _FOLDERS:
        _FOLDERS[kind, name] = factory.mktemp(name)
    return _FOLDERS[kind, name]


# What holds whatever the reference says.


def test_it_is_a_tokenizer(tmp_path):
    tokenizer: Tokenizer = ours("bpe", "llama", tmp_path)
    assert tokenizer.vocab_size == 900
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, {2})
    assert tokenizer.encode("a", bos=True)[0] == 1
    assert tokenizer.control_tokens == {"<s>": 1, "</s>": 2}


@given(ODD)
def test_a07_decoding_gives_back_every_text_without_the_sign_for_blanks(tmp_path_factory, text):
    text = text.replace("\u2581", "")
    for kind in ("bpe", "unigram"):
        for name in ("llama", "gemma"):
            tokenizer = ours(kind, name, _folder(tmp_path_factory, kind, name))
            assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.binary(max_size=60))
def test_bytes_are_spelled_exactly_and_without_a_blank_in_front(tmp_path_factory, data):
    for kind in ("bpe", "unigram"):
        tokenizer = ours(kind, "llama", _folder(tmp_path_factory, kind, "llama"))
        for each in (data, data + b" a", b" " + data, "\u2581".encode() + data):
            assert b"".join(map(tokenizer.token_bytes, tokenizer.encode_bytes(each))) == each


@given(ODD, st.randoms(use_true_random=False))
def test_b01_b03_streamed_text_is_the_text_however_bytes_fall(tmp_path_factory, text, rng):
    tokenizer = ours("bpe", "llama", _folder(tmp_path_factory, "bpe", "llama"))
    prompt = tokenizer.encode("The answer:")
    answer = tokenizer.encode(text, is_start=False)
    if rng.random() < 0.5:  # bytes of a character that never becomes whole
        answer.insert(rng.randint(0, len(answer)), tokenizer.encode_bytes(b"\xe6\xad")[0])
    stream = Detokenizer(tokenizer.token_bytes, skipped=tokenizer.control_ids)
    pieces = [stream.push(token_id) for token_id in answer] + [stream.finish()]
    whole = tokenizer.decode(prompt + answer)
    assert "".join(pieces) == whole.removeprefix(tokenizer.decode(prompt))


def test_a06_plain_text_never_becomes_a_control_token(both):
    tokenizer, reference = both
    for name in tokenizer.control_tokens:
        ids = tokenizer.encode(f"x{name}y")
        assert not tokenizer.control_ids.intersection(ids)
        assert ids == reference.encode(f"x{name}y")
        assert tokenizer.control_tokens[name] in tokenizer.encode(f"x{name}y", control=True)


def test_pieces_and_merges_tell_how_the_ids_came_about(tmp_path):
    tokenizer = ours("bpe", "llama", tmp_path)
    text = "the model 漢"
    pieces = tokenizer.encode_pieces(text)
    assert "".join(piece.text for piece in pieces) == "\u2581the\u2581model\u2581漢"
    assert [i for piece in pieces for i in piece.token_ids] == tokenizer.encode(text)
    for piece in pieces[:2]:
        *_, last = tokenizer.merges(piece.text)
        assert b"".join(last.parts) == piece.text.replace("\u2581", " ").encode()
        assert len(last.parts) == len(piece.token_ids)
        ranks = [merge.rank for merge in tokenizer.merges(piece.text)]
        assert ranks
    assert list(ours("unigram", "llama", tmp_path).merges("\u2581the")) == []


def test_the_best_cut_is_the_ids_with_the_references_scores(tmp_path):
    tokenizer, reference = ours("unigram", "defaults", tmp_path), theirs("unigram", "defaults")
    (piece,) = tokenizer.encode_pieces("the model \u6f22 of attention")
    cut = tokenizer.best_cut(piece.text)
    assert b"".join(each.part for each in cut) == piece.text.replace("\u2581", " ").encode()
    known = [each for each in cut if each.token_id is not None]
    assert [each.token_id for each in known] == [i for i in piece.token_ids if i]
    for each in known:
        assert each.score == pytest.approx(reference.GetScore(each.token_id))
    (unknown,) = [each.score for each in cut if each.token_id is None]
    assert unknown < min(each.score for each in known)
    assert ours("bpe", "llama", tmp_path).best_cut("\u2581the") == ()


def test_the_fingerprint_tells_vocabularies_and_rules_apart(tmp_path_factory):
    prints = [
        ours(kind, name, _folder(tmp_path_factory, kind, name)).fingerprint for kind, name in MODELS
    ]
    assert len(set(prints)) == len(MODELS)


def test_a_sink_gets_the_pieces(tmp_path):
    tokenizer, seen = ours("bpe", "gemma", tmp_path), []
    tapped = SentencePiece(
        tokenizer.vocabulary, control_tokens=tokenizer.control_tokens, sink=seen.append
    )
    assert tapped.encode("a <h1> b") == tokenizer.encode("a <h1> b")
    assert [piece.is_added for piece in seen[0]] == [False, False, True, False][: len(seen[0])]


# The same vocabularies as GGUF files have them.


def metadata_of(model: ModelFile) -> dict[str, object]:
    """Metadata as converters write it: blanks in user-defined pieces, all others as they are."""
    spec = model.normalizer
    found: dict[str, object] = {
        "model": "t5" if model.kind == 1 else "llama",
        "tokens": tuple(
            p.text.replace("\u2581", " ") if p.type == PieceType.USER_DEFINED else p.text
            for p in model.pieces
        ),
        "scores": tuple(piece.score for piece in model.pieces),
        "token_type": tuple(int(piece.type) for piece in model.pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": spec.add_dummy_prefix,
        "remove_extra_whitespaces": spec.remove_extra_whitespaces,
    }
    if spec.charsmap:
        found["precompiled_charsmap"] = tuple(spec.charsmap)
    return {f"tokenizer.ggml.{name}": value for name, value in found.items()}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("bpe", "llama"), ("bpe", "gemma"), ("unigram", "defaults"), ("unigram", "named")],
)
def test_a_gguf_file_gives_the_ids_of_the_model_file(kind, name):
    model = parse_model_file(trained(kind, name), file="x.model")
    tokenizer = tokenizer_from_gguf(metadata_of(model), file="x.gguf")
    reference = theirs(kind, name)
    for text in [*random_texts(200), *lines()[::20]]:
        assert_alike(tokenizer, reference, text)
    assert tokenizer.encode("a", bos=True)[:1] == ([1] if kind == "bpe" else tokenizer.encode("a"))
    assert tokenizer.eos_token_ids == {2}


# The same vocabularies as tokenizer.json has them: HF's own converter, in a few lines.


def document_of(model: ModelFile, **changes) -> dict[str, object]:
    """A tokenizer.json, as transformers converts Llama's (bpe) and T5's (unigram) models."""
    ids = {piece.text: token_id for token_id, piece in enumerate(model.pieces)}
    if model.kind == 1:
        body: dict[str, object] = {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [[piece.text, piece.score] for piece in model.pieces],
            "byte_fallback": model.byte_fallback,
        }
    else:
        found = [
            (ids[text], text[:at], text[at:])
            for text in ids
            for at in range(1, len(text))
            if text[:at] in ids and text[at:] in ids
        ]
        merges = sorted(found, key=lambda merge: (-model.pieces[merge[0]].score, merge))
        body = {
            "type": "BPE",
            "vocab": ids,
            "merges": [[left, right] for _, left, right in merges],
            "byte_fallback": model.byte_fallback,
            "unk_token": "<unk>",
            "fuse_unk": True,
        }
    special = [
        {"id": i, "content": model.pieces[i].text, "special": True, "normalized": False}
        for i in range(3)
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token | flags for token in special],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": sequence("decoders", replace_space("\u2581", " "), BYTES, FUSE, STRIP),
        "model": body,
    } | changes


BYTES, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sequence(members: str, *steps):
    return {"type": "Sequence", members: list(steps)}


def replace_space(pattern: str, content: str):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def metaspace(**settings):
    return {"type": "Metaspace", "replacement": "\u2581"} | settings


def precompiled(model: ModelFile):
    return {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(model.normalizer.charsmap).decode(),
    }


LEGACY = sequence(
    "normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace_space(" ", "\u2581")
)
SQUEEZE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
TRIM = {"type": "Strip", "strip_left": False, "strip_right": True}
FORMS = {
    "legacy": {"normalizer": LEGACY},
    "first": {"pre_tokenizer": metaspace(prepend_scheme="first", split=False)},
    "always": {"pre_tokenizer": metaspace(prepend_scheme="always", split=False)},
    "never": {"pre_tokenizer": metaspace(prepend_scheme="never", split=False)},
    "split": {"pre_tokenizer": metaspace(), "decoder": sequence("decoders", BYTES, metaspace())},
    "words": {
        "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace()),
        "decoder": sequence("decoders", BYTES, metaspace()),
    },
    "gemma": {
        "normalizer": replace_space(" ", "\u2581"),
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "decoder": sequence("decoders", replace_space("\u2581", " "), BYTES, FUSE),
    },
    "nfc": {"normalizer": sequence("normalizers", {"type": "NFC"}, LEGACY)},
}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}


def written(folder: Path, root: dict[str, object]) -> SentencePiece:
    (folder / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
    tokenizer = load_folder(folder)
    assert isinstance(tokenizer, SentencePiece)
    return tokenizer


def assert_equal_to_hf(tokenizer: SentencePiece, root: dict[str, object], texts: list[str]) -> None:
    reference = HfTokenizer.from_str(json.dumps(root))
    for control in (False, True):
        reference.encode_special_tokens = not control
        for text in texts:
            # HF takes the name of a byte in the text for the byte; sentencepiece and we do not.
            expected = reference.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, control=control) == expected, (text, control)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a08_ids_equal_hf_for_every_form_of_tokenizer_json(kind, form, tmp_path):
    model = parse_model_file(trained(kind, "llama"), file="x.model")
    root = document_of(model, **FORMS[form])
    root["added_tokens"] = [
        *root["added_tokens"],
        {"id": 900, "content": "<h1>", "normalized": False} | ADDED,
        {"id": 901, "content": "xyzw", "normalized": True} | ADDED | {"single_word": True},
    ]
    texts = [t.replace("<0x41>", "").replace("</s>", "<s>") for t in random_texts(150)]
    texts += ["<s>ab", "ab<s>ab", " ab", "<s> ab", "ab <h1> ab", "<h1>", *lines()[::40]]
    texts += ["a xyzw bxyzw", "xyzw", " xyzw<h1>xyzw"]
    if kind == "unigram":  # there HF finds control tokens in plain text, and we do not
        texts = [text.replace("<s>", "<h1>") for text in texts]
    tokenizer = written(tmp_path, root)
    assert_equal_to_hf(tokenizer, root, texts)
    reference = HfTokenizer.from_str(json.dumps(root))
    for text in ("hello", "    if x:\n", "a. It is", "漢字🦙 é"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["defaults", "folded"])
def test_a_compiled_map_of_characters_equals_hf(name, tmp_path):
    model = parse_model_file(trained("unigram", name), file="x.model")
    root = document_of(
        model,
        normalizer=sequence("normalizers", precompiled(model), TRIM, SQUEEZE),
        pre_tokenizer=metaspace(),
        decoder=metaspace(),
    )
    texts = [t.replace("</s>", "").replace("<s>", "") for t in random_texts(300)]
    texts += ["e\u0301\u0327", "ﬁ\u0301", "\r\n", "👩‍👩‍👧‍👦", *lines()[::20]]
    assert_equal_to_hf(written(tmp_path, root), root, texts)
