"""Model files written byte by byte here: what is read, and the errors of files that lie."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.core.errors import (
    CutawayError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from cutaway.tokens.files.model_file import PieceType, parse_model_file
from cutaway.tokens.files.tokenizer_files import load_folder, load_model_file, tokenizer_from_gguf
from cutaway.tokens.sentencepiece.charsmap import Charsmap
from cutaway.tokens.sentencepiece.sentencepiece import SentencePiece
from spm_trained import trained

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def varint(value: int) -> bytes:
    done = b""
    value &= (1 << 64) - 1
    while value > 0x7F:
        done += bytes([value & 0x7F | 0x80])
        value >>= 7
    return done + bytes([value])


def field(number: int, value: int | float | bytes | str) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def piece(text: str | bytes, score: float = 0.0, kind: int = NORMAL) -> bytes:
    return field(1, field(1, text) + field(2, score) + field(3, kind))


BASE = piece("<unk>", kind=UNKNOWN) + piece("<s>", kind=CONTROL) + piece("</s>", kind=CONTROL)
LETTERS = b"".join(piece(text, -float(n)) for n, text in enumerate(["ab", "\u2581", "a", "b", "c"]))
BPE = field(2, field(3, 2))
PLAIN = field(3, field(4, 0))  # blanks are kept


def load(tmp_path, data: bytes, **beside: object) -> SentencePiece:
    (tmp_path / "tokenizer.model").write_bytes(data)
    for name, content in beside.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return load_model_file(tmp_path / "tokenizer.model")


def test_a_model_file_is_read(tmp_path):
    tokenizer = load(tmp_path, BASE + LETTERS + BPE + PLAIN)
    assert tokenizer.encode("abc") == [4, 3, 7]
    assert tokenizer.encode("x", bos=True) == [1, 4, 0]
    assert tokenizer.decode([4, 3, 7]) == "abc"
    assert tokenizer.decode([4, 0, 7]) == " \u2047 c"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, {2})


def test_unknown_characters_in_a_row_are_one_token(tmp_path):
    tokenizer = load(tmp_path, BASE + LETTERS + BPE + PLAIN)
    assert tokenizer.encode("xyz") == [4, 0]
    assert tokenizer.encode("xaz") == [4, 0, 5, 0]


def test_a02_the_best_score_goes_first_and_the_leftmost_among_equals(tmp_path):
    ties = piece("ab", -1.0) + piece("bc", -1.0) + b"".join(piece(c, -9.0) for c in "abc\u2581")
    tokenizer = load(tmp_path, BASE + ties + BPE + PLAIN)
    assert tokenizer.encode("abc") == [8, 3, 7]
    assert tokenizer.encode("bcab") == [8, 4, 3]


def test_a_piece_that_is_unused_comes_apart_again(tmp_path):
    unused = piece("ab", -1.0) + piece("abc", -2.0, UNUSED)
    letters = b"".join(piece(c, -9.0) for c in "abc\u2581")
    tokenizer = load(tmp_path, BASE + unused + letters + BPE + PLAIN)
    assert tokenizer.encode("abc") == [8, 3, 7]


def test_the_files_beside_name_tokens_and_rules(tmp_path):
    tokenizer = load(
        tmp_path,
        BASE + LETTERS + BPE + PLAIN,
        tokenizer_config={
            "add_bos_token": False,
            "eos_token": "<|end|>",
            "legacy": False,
            "added_tokens_decoder": {
                "2": {"content": "</s>", "special": True},
                "9": {"content": "<|end|>", "special": True},
            },
        },
        added_tokens={"<tool>": 8},
    )
    assert tokenizer.vocab_size == 10
    assert tokenizer.eos_token_ids == {9}
    assert tokenizer.encode("a", bos=True) == [4, 5]
    assert tokenizer.encode("a<tool>a") == [4, 5, 8, 5]  # "legacy": a blank at the start alone
    assert tokenizer.encode("a<|end|>a", control=True) == [4, 5, 9, 5]
    assert tokenizer.encode("a", is_start=False) == [5]
    assert tokenizer.decode([4, 5, 9, 8]) == "a<tool>"


def test_without_a_word_on_it_every_stretch_gets_a_blank(tmp_path):
    tokenizer = load(tmp_path, BASE + LETTERS + BPE + PLAIN, added_tokens={"<tool>": 8})
    assert tokenizer.encode("a<tool>a") == [4, 5, 8, 4, 5]


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"added_tokens": {"<tool>": 3}}, r"added_tokens\.json: <tool>"),
        ({"added_tokens": {"ab": 9}}, r"added_tokens\.json: ab"),
        ({"added_tokens": {"x": -1}}, r"added_tokens\.json: x"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "added_tokens_decoder.x"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9": {}}}}, "decoder.9.content"),
        ({"tokenizer_config": {"bos_token": "<b>"}}, "bos_token"),
    ],
)
def test_a_fault_in_the_files_beside_is_named(tmp_path, beside, words):
    with pytest.raises(ModelFormatError, match=words):
        load(tmp_path, BASE + LETTERS + BPE + PLAIN, **beside)


def test_a_folder_has_tokenizer_json_before_tokenizer_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        load_folder(tmp_path)
    load(tmp_path, BASE + LETTERS + BPE + PLAIN)
    assert load_folder(tmp_path).encode("ab") == [4, 3]
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: "):
        load_folder(tmp_path)
    with pytest.raises(ModelNotFoundError, match="there is no file"):
        load_model_file(tmp_path / "other.model")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "pieces"),
        (b"\xff", "(whole file)"),
        (b"{}", "(whole file)"),
        (b"\x0b", "(whole file)"),
        (BASE[:-1], "(whole file)"),
        (field(1, b"\x0a\x7f"), "pieces[0]"),
        (BASE + field(1, field(1, b"\xff") + field(2, 0.0)), "pieces[3].piece"),
        (BASE + field(1, field(2, 0.0)), "pieces[3]"),
        (BASE + piece(""), "pieces[3]"),
        (BASE + piece("a", float("nan")), "pieces[3]"),
        (BASE + piece("a", kind=7), "pieces[3]"),
        (BASE + field(1, field(1, "a") + field(2, 3)), "pieces[3].score"),
        (BASE + field(1, field(1, "a") + field(3, b"x")), "pieces[3].type"),
        (BASE + field(1, 4), "pieces[3]"),
        (BASE + piece("<s>"), "pieces[3]"),
        (BASE + field(2, field(3, 9)), "trainer_spec"),
        (BASE + field(2, field(35, b"x")), "trainer_spec.byte_fallback"),
        (BASE + field(2, field(35, 1)), "trainer_spec.byte_fallback"),
        (BASE + field(2, field(46, b"\xff")), "trainer_spec.bos_piece"),
        (BASE + field(2, 7), "trainer_spec"),
        (BASE + field(3, field(3, b"x")), "normalizer_spec.add_dummy_prefix"),
        (BASE + field(3, field(2, b"1234567")), "normalizer_spec.precompiled_charsmap"),
        (BASE + field(3, field(2, b"\xff\xff\xff\x7f")), "normalizer_spec.precompiled_charsmap"),
    ],
)
def test_a_cut_or_lying_file_is_named_with_its_field(tmp_path, data, named):
    with pytest.raises(ModelFormatError) as caught:
        load(tmp_path, data)
    assert (caught.value.file, caught.value.field) == ("tokenizer.model", named)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (BASE + field(2, field(3, 3)), "model_type is word"),
        (BASE + field(2, field(3, 4)), "model_type is char"),
        (BASE + field(5, field(2, b"x")), "denormalizer_spec has rules"),
    ],
)
def test_another_kind_of_model_is_named(tmp_path, data, words):
    with pytest.raises(UnsupportedModelError, match=words):
        load(tmp_path, data)


def test_fields_that_are_not_known_are_passed_over():
    extra = field(90, 5) + field(91, b"x") + varint(92 << 3 | 1) + bytes(8)
    model = parse_model_file(BASE + extra + field(2, field(60, "x") + field(3, 2)), file="x")
    assert [each.type for each in model.pieces] == [PieceType.UNKNOWN, *[PieceType.CONTROL] * 2]


@settings(max_examples=200)
@given(st.data())
def test_a_file_with_any_bytes_anywhere_loads_or_raises_one_of_our_errors(tmp_path_factory, data):
    sound = trained("unigram", "named")
    raw = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        # The rules in the middle are long; what stands at both ends is looked at more often.
        at = data.draw(st.integers(-3000, 3000) | st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.none() | st.integers(0, len(raw)))
    path = tmp_path_factory.mktemp("any") / "tokenizer.model"
    path.write_bytes(bytes(raw[:end]))
    try:
        tokenizer = load_model_file(path)
    except CutawayError:
        return
    tokenizer.decode(tokenizer.encode("the <h1> model e\u0301 \ufb01 \u2460  \u00a0 x", bos=True))


def test_a_trie_that_lies_gives_some_text_and_no_other_error():
    data = parse_model_file(trained("unigram", "defaults"), file="x").normalizer.charsmap
    assert Charsmap(data, file="x", field="y").apply("\ufb01\u2460e\u0301") == "fi1\u00e9"
    cut = struct.pack("<I", 8) + b"\x00\xff\xff\xff" * 2 + b"abc"
    for text in ("a", "\u00e9", "\U0001f999" * 3):
        assert isinstance(Charsmap(cut, file="x", field="y").apply(text), str)


# GGUF metadata


def metadata(**changes: object) -> dict[str, object]:
    fields = {
        "model": "llama",
        "tokens": ("<unk>", "<s>", "</s>", "ab", "\u2581", "a", "b", "  "),
        "scores": (0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -1000.0),
        "token_type": (2, 3, 3, 1, 1, 1, 1, 4),
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    return {f"tokenizer.ggml.{k}": value for k, value in fields.items() if value is not None}


def test_gguf_metadata_gives_bos_blanks_and_user_defined_pieces():
    tokenizer = tokenizer_from_gguf(metadata(), file="x.gguf")
    assert tokenizer.encode("ab", bos=True) == [1, 4, 3]
    assert tokenizer.encode("a  b") == [4, 5, 7, 6]
    assert tokenizer.decode([4, 5, 7, 6]) == "a  b"
    assert tokenizer.control_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    without = tokenizer_from_gguf(
        metadata(add_space_prefix=False, add_bos_token=False), file="x.gguf"
    )
    assert without.encode("ab", bos=True) == [3]
    assert without.decode([4, 3]) == " ab"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scores": None}, "scores"),
        ({"scores": (1.0,)}, "scores"),
        ({"scores": ("x",) * 8}, "scores"),
        ({"tokens": ()}, "tokens"),
        ({"token_type": (1,) * 7}, "token_type"),
        ({"token_type": (9,) * 8}, "token_type"),
        ({"bos_token_id": 8}, "bos_token_id"),
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"add_space_prefix": "no"}, "add_space_prefix"),
        ({"model": "t5", "precompiled_charsmap": "x"}, "precompiled_charsmap"),
    ],
)
def test_a_malformed_gguf_field_is_named(changes, named):
    with pytest.raises(ModelFormatError) as caught:
        tokenizer_from_gguf(metadata(**changes), file="x.gguf")
    assert (caught.value.file, caught.value.field) == ("x.gguf", f"tokenizer.ggml.{named}")


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.floats(),
    st.sampled_from(["", "a", "llama", "t5"]),
    st.just(()),
    st.lists(st.text(max_size=3), min_size=8, max_size=8).map(tuple),
    st.lists(st.floats(), min_size=8, max_size=8).map(tuple),
    st.lists(st.integers(0, 7), min_size=8, max_size=8).map(tuple),
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(metadata())), VALUES, st.sampled_from(["llama", "t5"]))
def test_gguf_metadata_with_any_value_loads_or_raises_one_of_our_errors(key, value, kind):
    try:
        tokenizer = tokenizer_from_gguf(metadata(model=kind) | {key: value}, file="x.gguf")
    except CutawayError:
        return
    tokenizer.decode(tokenizer.encode("a  ab <s> \u00e9", control=True, bos=True))


# tokenizer.json: settings that are not read


def document(**changes: object) -> dict[str, object]:
    return {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"},
        "post_processor": None,
        "decoder": {"type": "Metaspace", "replacement": "\u2581"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]},
    } | changes


def unigram(**changes: object) -> dict[str, object]:
    return {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]} | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer": {"type": "Lowercase"}}, 'normalizer.type is "Lowercase"'),
        ({"pre_tokenizer": {"type": "Whitespace"}}, 'pre_tokenizer.type is "Whitespace"'),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}, 'replacement is "_"'),
        ({"decoder": {"type": "WordPiece"}}, 'decoder.type is "WordPiece"'),
        ({"decoder": None}, "decoder is null"),
        ({"model": unigram(dropout=0.1)}, "model.dropout is 0.1"),
        ({"model": unigram(novelty=1)}, "model.novelty is 1"),
        (
            {"decoder": {"type": "Replace", "pattern": {"String": "_"}, "content": " "}},
            "decoder is",
        ),
        (
            {"decoder": {"type": "Strip", "content": " ", "start": 2, "stop": 0}},
            "decoder.start is 2",
        ),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}}, "Regex"),
    ],
)
def test_a_setting_of_a_json_that_is_not_read_is_named(tmp_path, changes, words):
    (tmp_path / "tokenizer.json").write_text(json.dumps(document(**changes)), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match=words):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": unigram(vocab=[])}, "model.vocab"),
        ({"model": unigram(vocab=[["a"]])}, "model.vocab[0]"),
        ({"model": unigram(vocab=[["a", "b"]])}, "model.vocab[0][1]"),
        ({"model": unigram(vocab=[[1, 0.0]])}, "model.vocab[0][0]"),
        ({"model": unigram(unk_id=2)}, "model.unk_id"),
        (
            {
                "pre_tokenizer": {
                    "type": "Metaspace",
                    "replacement": "\u2581",
                    "prepend_scheme": "x",
                }
            },
            "pre_tokenizer.prepend_scheme",
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%"}},
            "normalizer.precompiled_charsmap",
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
            "normalizer.precompiled_charsmap",
        ),
    ],
)
def test_a_malformed_entry_of_a_json_is_named(tmp_path, changes, named):
    (tmp_path / "tokenizer.json").write_text(json.dumps(document(**changes)), encoding="utf-8")
    with pytest.raises(ModelFormatError) as caught:
        load_folder(tmp_path)
    assert (caught.value.file, caught.value.field) == ("tokenizer.json", named)
