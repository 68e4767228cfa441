"""Tokenizers read from small files written here, and the errors of files that lie."""

from __future__ import annotations

import base64
import json
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from cutaway.core.errors import (
    CutawayError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from cutaway.tokens.files.tokenizer_files import (
    load_rank_file,
    load_tokenizer_json,
    tokenizer_from_gguf,
)
from cutaway.tokens.patterns import GPT2, LLAMA3
from cutaway.tokens.unicode import BYTE_SYMBOLS

BYTES = {symbol: byte for byte, symbol in enumerate(BYTE_SYMBOLS)}


def document(**changes):
    """A tokenizer.json with bytes 0 to 255, two merges and two added tokens."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(258, "<s>", special=True), added(259, "<h1>", special=False)],
        "normalizer": None,
        "pre_tokenizer": byte_level(),
        "post_processor": byte_level(),
        "decoder": byte_level(),
        "model": model(),
    } | changes


def model(**changes):
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": BYTES | {"ab": 256, "\u0120ab": 257},
        "merges": [["a", "b"], ["\u0120", "ab"]],
    } | changes


def byte_level(**changes):
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    } | changes


def added(token_id, content, **changes):
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    } | changes


def split(pattern=LLAMA3, behavior="Isolated", invert=False):
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": behavior,
        "invert": invert,
    }


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


@pytest.fixture
def load(tmp_path):
    """Load a document with the files beside it, after checking that HF can read it too."""

    def loaded(root, **beside):
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(root), encoding="utf-8")
        for name, content in beside.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return load_tokenizer_json(path)

    return loaded


def hf_ids(root, text):
    return HfTokenizer.from_str(json.dumps(root)).encode(text).ids


TEXT = "ab ab 12a'LL <h1>cab<s> \u00e9e\u0301 x  y\n\n z  "


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": model(merges=["a b", "\u0120 ab"])},
        {"model": model(ignore_merges=True, merges=[["a", "b"]])},
        {"model": {k: v for k, v in model().items() if k in ("type", "vocab", "merges")}},
        {"normalizer": {"type": "NFC"}},
        {"normalizer": {"type": "NFKD"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
        {"normalizer": {"type": "Sequence", "normalizers": []}},
        {"pre_tokenizer": sequence(split(), byte_level(use_regex=False))},
        {"pre_tokenizer": sequence(split(behavior="Removed", invert=True), byte_level())},
        {"pre_tokenizer": sequence(split(r"[\r\n]"), split(r"\s?\p{L}+"), byte_level())},
        {
            "pre_tokenizer": sequence(
                {"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)
            )
        },
        {
            "pre_tokenizer": sequence(
                {"type": "Digits", "individual_digits": False}, byte_level(use_regex=False)
            )
        },
        {
            "pre_tokenizer": sequence(
                split() | {"pattern": {"String": "."}}, byte_level(use_regex=False)
            )
        },
        {"decoder": {"type": "Sequence", "decoders": [byte_level()]}},
        {
            "added_tokens": [
                added(258, "<h1>", lstrip=True),
                added(259, "<s>", special=True, rstrip=True),
                added(260, "x  y", single_word=True, normalized=True),
            ]
        },
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_ids_equal_hf_for_every_setting_that_is_read(load, changes):
    root = document(**changes)
    assert load(root).encode(TEXT, control=True) == hf_ids(root, TEXT)


def test_bytes_without_a_token_become_the_unknown_token_where_one_is_named(load):
    vocab = {token: i for token, i in model()["vocab"].items() if token != "z"} | {"?": 300}
    root = document(model=model(vocab=vocab, unk_token="?"), added_tokens=[])
    assert load(root).encode("azz") == hf_ids(root, "azz") == [97, 300, 300]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": model(type="Unigram")}, 'model.type is "Unigram"'),
        ({"model": model(dropout=0.1)}, "model.dropout is 0.1"),
        ({"model": model(byte_fallback=True)}, "model.byte_fallback is true"),
        ({"model": model(end_of_word_suffix="</w>")}, 'model.end_of_word_suffix is "</w>"'),
        ({"model": model(novelty=1)}, "model.novelty is 1"),
        ({"normalizer": {"type": "Lowercase"}}, 'normalizer is {"type": "Lowercase"}'),
        ({"pre_tokenizer": {"type": "Metaspace"}}, 'pre_tokenizer.type is "Metaspace"'),
        (
            {"pre_tokenizer": sequence(split(), byte_level(add_prefix_space=True))},
            "add_prefix_space is true; Cutaway knows false behind other steps",
        ),
        ({"pre_tokenizer": sequence()}, "ByteLevel once, and last"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": None}}, "pretokenizers"),
        ({"pre_tokenizer": sequence(split())}, "ByteLevel once, and last"),
        ({"pre_tokenizer": sequence(byte_level(), split())}, "ByteLevel once, and last"),
        (
            {"pre_tokenizer": sequence(split(r"\d"), split("a", "Removed"), byte_level())},
            r"pretokenizers\[1\].*Isolated without invert",
        ),
        ({"pre_tokenizer": sequence(split("(a"), byte_level())}, "without its"),
        ({"decoder": {"type": "Metaspace"}}, "decoder is"),
        ({"post_processor": {"type": "BertProcessing"}}, "post_processor.type is"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}],
                    "special_tokens": {"<s>": {"ids": [258]}},
                }
            },
            "tokens in front only",
        ),
    ],
)
def test_a_setting_that_is_not_read_is_named(load, changes, named):
    with pytest.raises(UnsupportedModelError, match=named):
        load(document(**changes))


def test_a_missing_pre_tokenizer_or_decoder_is_named(load):
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: pre_tokenizer: found null"):
        load(document(pre_tokenizer=None))
    with pytest.raises(UnsupportedModelError, match="decoder is null"):
        load(document(decoder=None))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": None}, "model"),
        ({"model": model(vocab=[])}, "model.vocab"),
        ({"model": model(vocab={})}, "model.vocab"),
        ({"model": model(vocab={"a": -1})}, "model.vocab.a"),
        ({"model": model(vocab={"a": "1"})}, "model.vocab.a"),
        ({"model": model(merges=None)}, "model.merges"),
        ({"model": model(merges=["a b", "ab"])}, "model.merges[1]"),
        ({"model": model(merges=[["a", "b"], ["a", "b", "c"]])}, "model.merges[1]"),
        ({"model": model(merges=[["a", "b"], 7])}, "model.merges[1]"),
        ({"model": model(merges=[["a", ["b"]]])}, "model.merges[0]"),
        ({"model": model(merges=[["a", "c"]])}, "model.merges[0]"),
        ({"model": model(merges=[["xy", "c"]])}, "model.merges[0]"),
        (
            {
                "model": model(unk_token="<nope>", vocab={"a": 0}, merges=[]),
                "added_tokens": [],
            },
            "model.unk_token",
        ),
        ({"model": model(ignore_merges="yes")}, "model.ignore_merges"),
        ({"model": model(vocab={"a\ud800": 1})}, "model.vocab"),
        ({"added_tokens": {}}, "added_tokens"),
        ({"added_tokens": [added(300, "\ud800")]}, "added_tokens[0].content"),
        ({"added_tokens": [{"id": "1", "content": "x"}]}, "added_tokens[0].id"),
        ({"added_tokens": [{"id": True, "content": "x"}]}, "added_tokens[0].id"),
        ({"added_tokens": [{"id": 1}]}, "added_tokens[0].content"),
        ({"added_tokens": [added(300, "x")]}, "added_tokens[0].id"),
        ({"pre_tokenizer": sequence({"type": "Split"}, byte_level())}, None),
        ({"pre_tokenizer": []}, "pre_tokenizer"),
    ],
)
def test_a_malformed_entry_is_named_with_its_file(load, changes, field):
    with pytest.raises(ModelFormatError) as caught:
        load(document(**changes))
    assert caught.value.file == "tokenizer.json"
    if field is not None:
        assert caught.value.field == field


def test_a_file_that_is_absent_or_no_json_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer_json(path)
    for content in (b"", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ModelFormatError, match=r"tokenizer\.json: \(whole file\): no JSON"):
            load_tokenizer_json(path)


BOS_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
}


def test_begin_and_end_come_from_the_files_beside(load):
    tokenizer = load(
        document(),
        tokenizer_config={"bos_token": "<s>", "eos_token": {"content": "<h1>"}},
        generation_config={"bos_token_id": 0, "eos_token_id": [259, 97]},
    )
    assert tokenizer.bos_token_id == 258
    assert tokenizer.eos_token_ids == {259, 97}
    assert tokenizer.encode("a", bos=True) == [97]
    # A named end is a control token, whatever the list of added tokens says; a mere number is not.
    assert tokenizer.control_tokens == {"<s>": 258, "<h1>": 259}
    assert tokenizer.encode("<h1>a", control=True) == [259, 97]


def test_additional_and_padding_tokens_are_control_tokens(load):
    tokenizer = load(
        document(),
        special_tokens_map={
            "additional_special_tokens": ["<h1>", {"content": "ab"}],
            "pad_token": "<not-there>",
        },
    )
    assert tokenizer.control_tokens == {"<s>": 258, "<h1>": 259, "ab": 256}


def test_a_named_end_that_is_no_token_is_a_fault(load):
    with pytest.raises(ModelFormatError, match=r'tokenizer_config\.json: eos_token: found "<e>"'):
        load(document(), tokenizer_config={"eos_token": "<e>"})
    with pytest.raises(ModelFormatError, match="add_bos_token: found true; it must be false"):
        load(document(), tokenizer_config={"add_bos_token": True})


@pytest.mark.parametrize(
    ("add_bos", "processor", "prefix"),
    [
        (None, BOS_TEMPLATE, [258]),
        (None, {"type": "Sequence", "processors": [byte_level(), BOS_TEMPLATE]}, [258]),
        (None, None, []),
        (True, None, [258]),
        (False, BOS_TEMPLATE, []),
    ],
)
def test_a_prompt_begins_as_post_processor_and_config_say(load, add_bos, processor, prefix):
    config = {"bos_token": "<s>"} | ({} if add_bos is None else {"add_bos_token": add_bos})
    root = document(post_processor=processor)
    tokenizer = load(root, tokenizer_config=config)
    assert tokenizer.encode("ab", bos=True) == [*prefix, 256]
    if add_bos is None:
        assert tokenizer.encode("ab", bos=True) == hf_ids(root, "ab")


# Rank files


def rank_lines(tokens):
    return b"".join(base64.b64encode(t) + b" %d\n" % rank for rank, t in enumerate(tokens))


def test_a_rank_file_is_read_with_the_rules_of_its_encoding(tmp_path):
    path = tmp_path / "x.tiktoken"
    path.write_bytes(rank_lines([bytes([b]) for b in range(256)] + [b"ab", b"bc", b"abc"]))
    tokenizer = load_rank_file(path, "r50k_base")
    assert tokenizer.encode("abc") == [258]
    assert tokenizer.encode("abcd") == [258, 100]
    assert tokenizer.vocab_size == 50257
    assert tokenizer.eos_token_ids == {50256}
    assert tokenizer.bos_token_id is None


@pytest.mark.parametrize("line", [b"YQ==", b"YQ== x", b"Y 1", b"YQ== 1 2", b"\xff 1"])
def test_a_malformed_line_of_a_rank_file_is_named(tmp_path, line):
    path = tmp_path / "x.tiktoken"
    path.write_bytes(rank_lines([b"a"]) + line + b"\n")
    with pytest.raises(ModelFormatError) as caught:
        load_rank_file(path, "r50k_base")
    assert (caught.value.file, caught.value.field) == ("x.tiktoken", "line 2")


def test_a_rank_file_that_lacks_a_byte_an_encoding_or_itself_is_refused(tmp_path):
    path = tmp_path / "x.tiktoken"
    with pytest.raises(ModelNotFoundError):
        load_rank_file(path, "r50k_base")
    for content in (b"", rank_lines([bytes([b]) for b in range(255)])):
        path.write_bytes(content)
        with pytest.raises(ModelFormatError, match="all 256 bytes must be tokens"):
            load_rank_file(path, "r50k_base")
    with pytest.raises(UnsupportedModelError, match='encoding is "x"'):
        load_rank_file(path, "x")


# GGUF metadata

TYPES = [1] * 258 + [3, 4]


def metadata(**changes):
    """The vocabulary of document(), as a GGUF file says it. None leaves a field out."""
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": (*BYTES, "ab", "\u0120ab", "<s>", "<h1>"),
        "merges": ("a b", "\u0120 ab"),
        "token_type": array("i", TYPES),
        "bos_token_id": 258,
        "eos_token_id": 258,
        "add_bos_token": False,
    } | changes
    return {f"tokenizer.ggml.{k}": value for k, value in fields.items() if value is not None}


def from_gguf(**changes):
    return tokenizer_from_gguf(metadata(**changes), file="x.gguf")


def test_gguf_metadata_gives_the_same_ids_as_the_json_of_the_same_vocabulary(load):
    json_ids = load(document())
    tokenizer = from_gguf()
    for control in (False, True):
        assert tokenizer.encode(TEXT, control=control) == json_ids.encode(TEXT, control=control)
    assert tokenizer.vocab_size == 260
    assert tokenizer.vocabulary.patterns == (GPT2,)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (258, {258})


def test_a03_a_gguf_without_or_with_an_unknown_rule_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"x\.gguf: tokenizer\.ggml\.pre is null"):
        from_gguf(pre=None)
    with pytest.raises(UnsupportedModelError, match=r'tokenizer\.ggml\.pre is "made-up"'):
        from_gguf(pre="made-up")
    with pytest.raises(UnsupportedModelError, match=r'tokenizer\.ggml\.model is "rwkv"'):
        from_gguf(model="rwkv")


def test_a05_the_llama_rule_takes_pieces_whole_and_begins_prompts():
    tokenizer = from_gguf(pre="llama-bpe", merges=("a b",), add_bos_token=None)
    assert tokenizer.encode(" ab") == [257]
    assert tokenizer.encode("ab", bos=True) == [258, 256]
    assert from_gguf(merges=("a b",)).encode(" ab") == [32, 256]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_a06_no_plain_text_is_merged_or_taken_whole_into_a_control_token(pre):
    tokenizer = from_gguf(pre=pre, token_type=array("i", [1] * 256 + [3, 1, 3, 4]))
    assert tokenizer.control_ids == {256, 258}
    assert tokenizer.encode("ab") == [97, 98]
    assert tokenizer.encode("ab", control=True) == [256]


def test_a06_the_same_holds_for_a_json(load):
    root = document(added_tokens=[added(256, "ab", special=True)])
    assert load(root).encode("ab") == [97, 98]
    assert load(root).encode("ab", control=True) == [256]


def test_a10_a_vocabulary_whose_entry_is_a_raw_nul_byte_loads():
    tokens = list(metadata()["tokenizer.ggml.tokens"])
    tokens[0] = "\0"
    tokenizer = from_gguf(tokens=tokens)
    assert tokenizer.token_bytes(0) == b"\0"
    assert tokenizer.encode("\0") == [0]


def test_two_ids_with_the_same_text_both_print_it():
    tokens = (*metadata()["tokenizer.ggml.tokens"], "ab")
    tokenizer = from_gguf(tokens=tokens, token_type=None)
    assert tokenizer.decode([256, 260]) == "abab"


def test_ends_of_turns_end_answers_and_are_control_tokens():
    tokenizer = from_gguf(eot_token_id=259, eom_token_id=97, token_type=None)
    assert tokenizer.eos_token_ids == {258, 259, 97}
    # 97 is the byte "a": text could not do without it.
    assert tokenizer.control_ids == {258, 259}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens": None}, "tokens"),
        ({"tokens": ()}, "tokens"),
        ({"tokens": "abc"}, "tokens"),
        ({"tokens": (1, 2)}, "tokens"),
        ({"merges": None}, "merges"),
        ({"merges": ("a b", "ab")}, "merges[1]"),
        ({"merges": ("a b", "a b c")}, "merges[1]"),
        ({"merges": ("a c",)}, "merges[0]"),
        ({"token_type": array("i", [1])}, "token_type"),
        ({"token_type": array("f", [1.0] * 260)}, "token_type"),
        ({"eos_token_id": 260}, "eos_token_id"),
        ({"eos_token_id": -2}, "eos_token_id"),
        ({"bos_token_id": "0"}, "bos_token_id"),
        ({"add_bos_token": 1}, "add_bos_token"),
    ],
)
def test_a_malformed_gguf_field_is_named_with_its_file(changes, field):
    with pytest.raises(ModelFormatError) as caught:
        from_gguf(**changes)
    assert (caught.value.file, caught.value.field) == ("x.gguf", f"tokenizer.ggml.{field}")


# Whatever a file holds, it loads or the error is one of ours.

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.floats(allow_nan=False),
    st.sampled_from(["", "a", "ab", "a b", "BPE", "Sequence", "Split", "(", "<s>", "\ud800"]),
    st.just([]),
    st.just({}),
    st.just([1, "a", None]),
    st.just([["a", "b"]]),
    st.just({"type": "Sequence"}),
)


def paths(value, path=()):
    """Ways to every value inside a document, the long vocabulary aside."""
    yield path
    if isinstance(value, dict | list) and len(value) < 100:
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in children:
            yield from paths(child, (*path, key))


FULL = document(
    pre_tokenizer=sequence(split(), {"type": "Digits", "individual_digits": True}, byte_level()),
    post_processor={"type": "Sequence", "processors": [byte_level(), BOS_TEMPLATE]},
    normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]},
)
BESIDE = {
    "tokenizer_config": {
        "bos_token": "<s>",
        "eos_token": {"content": "<h1>"},
        "add_bos_token": True,
        "additional_special_tokens": ["<s>"],
    },
    "special_tokens_map": {"pad_token": "<s>"},
    "generation_config": {"eos_token_id": [258], "bos_token_id": 258},
}


@settings(max_examples=300)
@given(st.data())
def test_a_json_with_any_value_anywhere_loads_or_raises_one_of_our_errors(tmp_path_factory, data):
    files = {"tokenizer": FULL} | BESIDE
    name = data.draw(st.sampled_from(sorted(files)))
    changed = json.loads(json.dumps(files[name]))
    where = data.draw(st.sampled_from([p for p in paths(changed) if p]))
    parent = changed
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = data.draw(VALUES)
    folder = tmp_path_factory.mktemp("any")
    for each, content in (files | {name: changed}).items():
        (folder / f"{each}.json").write_text(json.dumps(content), encoding="utf-8")
    try:
        tokenizer = load_tokenizer_json(folder / "tokenizer.json")
    except CutawayError:
        return
    tokenizer.encode(TEXT, control=True, bos=True)


@given(st.sampled_from(sorted(metadata())), VALUES)
def test_gguf_metadata_with_any_value_loads_or_raises_one_of_our_errors(key, value):
    try:
        tokenizer = tokenizer_from_gguf(metadata() | {key: value}, file="x.gguf")
    except CutawayError:
        return
    tokenizer.encode(TEXT, control=True, bos=True)
