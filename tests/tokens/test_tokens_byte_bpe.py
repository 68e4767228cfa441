"""What a byte-level tokenizer gives and takes, on vocabularies of a few merges."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_vocabulary import WHOLE, texts_of, tiny
from tokenizers import AddedToken as HfAddedToken
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from cutaway.tokens import byte_bpe, piece_cache
from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE
from cutaway.tokens.byte_tokenizer import byte_tokenizer
from cutaway.tokens.fewest_tokens import FewestTokens
from cutaway.tokens.patterns import GPT2
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.tokens.unicode import BYTE_SYMBOLS, repair_surrogates, symbols_to_bytes

EOS = AddedToken(token_id=900, content="<eos>", is_control=True)
H1 = AddedToken(token_id=901, content="<h1>")


def hf_beside(*added: HfAddedToken, normalizer: normalizers.Normalizer | None = None):
    """HF's tokenizer over bytes alone: ids 0 to 255 are the bytes, as in tiny()."""
    theirs = HfTokenizer(
        models.BPE(vocab={symbol: byte for byte, symbol in enumerate(BYTE_SYMBOLS)}, merges=[])
    )
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.decoder = decoders.ByteLevel()
    if normalizer is not None:
        theirs.normalizer = normalizer
    theirs.add_tokens(list(added))
    return theirs


def test_it_is_a_tokenizer():
    tokenizer: Tokenizer = tiny([("a", "b")])
    assert tokenizer.vocab_size == 257


@given(st.text())
def test_decoding_gives_back_every_text(text):
    tokenizer = tiny([("a", "b"), ("\x7f", " ")], patterns=[GPT2])
    assert tokenizer.decode(tokenizer.encode(text)) == repair_surrogates(text)


@given(st.lists(st.text(st.sampled_from("ab0 \n.\u0301\xe9<h1>"), max_size=40), max_size=4))
def test_no_text_has_fewer_tokens_than_are_foretold(texts):
    merges = [("a", "b"), ("ab", "ab"), ("abab", "abab"), (" ", " "), ("a", "0")]
    for form in (None, "NFC", "NFKD"):
        plain = tiny(merges, added=[H1])
        tokenizer = ByteBPE(replace(plain.vocabulary, normal_form=form))
        assert FewestTokens(tokenizer).of(texts) <= len(tokenizer.encode("".join(texts)))
    assert FewestTokens(tokenizer).of(["ab" * 400, "a"]) == 101  # eight letters in one token


def test_nothing_is_foretold_where_a_letter_may_be_in_no_token():
    plain = tiny([("a", "b")])
    byte_ids = tuple(None if byte == ord("q") else byte for byte in range(256))
    tokenizer = ByteBPE(replace(plain.vocabulary, byte_ids=byte_ids))
    assert FewestTokens(tokenizer).of(["q" * 100]) == 0


@given(st.binary())
def test_decoding_gives_back_all_bytes(data):
    tokenizer = tiny([("a", "b")], patterns=[GPT2])
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_of_a_text_have_the_ids_of_the_text(text):
    tokenizer = tiny([("a", "b"), ("0", "0")], patterns=[GPT2], added=[H1])
    assert tokenizer.encode_bytes(text.encode()) == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("given_text", "repaired"),
    [
        ("\ud83d\udc4d", "\U0001f44d"),
        ("\ud83d", "\ufffd"),
        ("a\ud83db", "a\ufffdb"),
        ("\udc4d\ud83d", "\ufffd\ufffd"),
        ("\ufeff\ud83d\udc4d", "\ufeff\U0001f44d"),
    ],
)
def test_a09_surrogate_pairs_are_joined_and_lone_ones_replaced_on_every_way_in(
    given_text, repaired
):
    tokenizer = tiny([("a", "b")], patterns=[GPT2])
    assert tokenizer.encode(given_text) == tokenizer.encode(repaired)
    assert tokenizer.encode_pieces(given_text) == tokenizer.encode_pieces(repaired)
    assert list(tokenizer.merges(given_text)) == list(tokenizer.merges(repaired))
    assert tokenizer.decode(tokenizer.encode(given_text)) == repaired
    assert tokenizer.encode(given_text, control=True, bos=True) == tokenizer.encode(repaired)


def test_a10_nul_is_a_byte_like_any_other():
    for tokenizer in (tiny([("a", "b")]), byte_tokenizer()):
        assert tokenizer.encode("ab\0cd") != tokenizer.encode("ab")
        assert tokenizer.decode(tokenizer.encode("ab\0cd")) == "ab\0cd"
        assert tokenizer.token_bytes(0) == b"\0"


def test_a11_part_of_a_character_comes_in_and_goes_out_as_bytes():
    tokenizer = tiny([])
    assert tokenizer.encode_bytes(b"\xe6\xad") == [0xE6, 0xAD]
    assert tokenizer.decode_bytes([0xE6, 0xAD]) == b"\xe6\xad"
    assert tokenizer.decode([0xE6, 0xAD]) == "\ufffd"
    assert tokenizer.token_text(0xE6) == "\\xe6"


def test_a12_ordinary_added_tokens_match_where_control_tokens_are_plain_text():
    tokenizer = tiny([], added=[EOS, H1])
    theirs = hf_beside(HfAddedToken("<eos>", special=True), HfAddedToken("<h1>", normalized=False))
    text = "<h1>x<eos>"
    assert texts_of(tokenizer, text) == ["<h1>", "x", *"<eos>"]
    assert texts_of(tokenizer, text, control=True) == ["<h1>", "x", "<eos>"]
    theirs.encode_special_tokens = True
    assert [t.decode() for t in map(symbols_to_bytes, theirs.encode(text).tokens)] == [
        "<h1>",
        "x",
        *"<eos>",
    ]


def test_control_tokens_hide_no_added_token_inside_their_name():
    inside = AddedToken(token_id=902, content="eos>")
    tokenizer = tiny([], added=[EOS, inside])
    assert tokenizer.encode("<eos>") == [ord("<"), 902]
    assert tokenizer.encode("<eos>", control=True) == [900]


@given(st.text(st.sampled_from("<eos>h1 x|"), max_size=40))
def test_a06_no_plain_text_becomes_a_control_token(text):
    tokenizer = tiny([("<", "e"), ("o", "s")], added=[EOS, H1], patterns=[GPT2])
    assert not tokenizer.control_ids & set(tokenizer.encode(text))
    assert not tokenizer.control_ids & set(tokenizer.encode_bytes(text.encode()))


def ids_with(added: AddedToken, text: str) -> list[int]:
    return tiny([], added=[added]).encode(text)


def test_a13_blanks_beside_a_token_may_belong_to_it():
    token = AddedToken(token_id=256, content="<x>", takes_left=True, takes_right=True)
    for text in ("a <x> b", "a  <x>  b"):
        assert ids_with(token, text) == [ord("a"), 256, ord("b")]
    pieces = tiny([], added=[token]).encode_pieces("a  <x>  b")
    assert [piece.text for piece in pieces] == ["a", "  <x>  ", "b"]


def test_a13_a_single_word_is_touched_by_no_letter():
    token = AddedToken(token_id=256, content="foo", single_word=True)
    assert [i for i in ids_with(token, "foo foobar (foo)") if i > 255] == [256, 256]
    assert ids_with(token, "foobar") == list(b"foobar")


AROUND = [" ", "  ", "\t", "\n", "a", "_", "1", "(", "\u00e9", "<x>", "foo", "<x", "\u3000", ""]


@pytest.mark.parametrize("lstrip", [False, True])
@pytest.mark.parametrize("rstrip", [False, True])
@pytest.mark.parametrize("single_word", [False, True])
@given(st.lists(st.sampled_from(AROUND), max_size=12))
def test_a13_added_tokens_match_where_hf_matches_them(lstrip, rstrip, single_word, parts):
    text = "".join(parts)
    flags = {"lstrip": lstrip, "rstrip": rstrip, "single_word": single_word}
    theirs = hf_beside(
        HfAddedToken("<x>", normalized=False, **flags), HfAddedToken("foo", normalized=True)
    )
    ours = tiny(
        [],
        added=[
            AddedToken(
                token_id=256,
                content="<x>",
                takes_left=lstrip,
                takes_right=rstrip,
                single_word=single_word,
            ),
            AddedToken(token_id=257, content="foo", is_normalized=True),
        ],
    )
    assert ours.encode(text) == theirs.encode(text).ids


@given(st.text(st.sampled_from("e\u0301\u00e9<x> \u0327\u212b"), max_size=30))
def test_normalized_tokens_are_found_in_the_normalized_text_and_others_before(text):
    theirs = hf_beside(
        HfAddedToken("<x>", normalized=False),
        HfAddedToken("\u00e9<", normalized=True),
        HfAddedToken("\u212b", normalized=True),
        normalizer=normalizers.NFC(),
    )
    tokens = [
        AddedToken(token_id=256, content="<x>"),
        AddedToken(token_id=257, content="\u00e9<", is_normalized=True),
        AddedToken(token_id=258, content="\u212b", is_normalized=True),
    ]
    vocabulary = tiny([], added=tokens).vocabulary
    ours = byte_bpe.ByteBPE(replace(vocabulary, normal_form="NFC"))
    assert ours.encode(text) == theirs.encode(text).ids


def test_a07_a08_no_blank_is_added_or_taken_around_words_and_control_tokens():
    tokenizer = tiny([(" ", "u")], added=[EOS], patterns=[GPT2])
    for text in ("hello", "    if x:\n", " ...", "<eos>user", "<eos> user"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode(tokenizer.encode(text, control=True), skip_control=False) == text
    assert texts_of(tokenizer, "<eos>user", control=True) == ["<eos>", "u", "s", "e", "r"]
    assert texts_of(tokenizer, "<eos> user", control=True) == ["<eos>", " u", "s", "e", "r"]


@given(st.text(max_size=40))
def test_a14_text_does_not_grow_when_it_is_encoded_again(text):
    tokenizer = tiny([(" ", "a")], patterns=[GPT2])
    once = tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(once)) == once


@given(st.text(st.sampled_from("ab \n<h1><eos>e\u0301"), max_size=30), st.booleans())
def test_pieces_have_the_ids_of_the_text_and_are_the_text(text, control):
    tokenizer = tiny([("a", "b"), (" ", "a")], patterns=[GPT2], added=[EOS, H1])
    pieces = tokenizer.encode_pieces(text, control=control)
    assert "".join(piece.text for piece in pieces) == text
    found = [token_id for piece in pieces for token_id in piece.token_ids]
    assert found == tokenizer.encode(text, control=control)
    assert all(piece.is_added == (piece.text in ("<h1>", "<eos>")) for piece in pieces)


def test_merges_of_a_piece_come_in_order_with_the_parts_after_each():
    steps = list(tiny([("l", "l"), ("h", "e"), ("ll", "o"), ("he", "llo")]).merges("hello"))
    assert [(step.rank, step.left, step.right, step.token_id) for step in steps] == [
        (0, b"l", b"l", 256),
        (1, b"h", b"e", 257),
        (2, b"ll", b"o", 258),
        (3, b"he", b"llo", 259),
    ]
    assert [step.parts for step in steps] == [
        (b"h", b"e", b"ll", b"o"),
        (b"he", b"ll", b"o"),
        (b"he", b"llo"),
        (b"hello",),
    ]


@given(st.text(st.sampled_from("ab"), max_size=20))
def test_the_last_parts_of_the_merges_are_the_tokens(text):
    tokenizer = tiny([("a", "b"), ("b", "ab"), ("a", "a"), ("bab", "bab")])
    parts = tuple(bytes([byte]) for byte in text.encode())
    for step in tokenizer.merges(text):
        parts = step.parts
    assert list(parts) == [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]


def test_ids_without_a_token_print_as_their_number():
    tokenizer = tiny([], added=[EOS])
    assert tokenizer.vocab_size == 901
    for token_id in (256, 899, 901, 50_300):
        assert tokenizer.token_bytes(token_id) == f"<{token_id}>".encode()
        assert tokenizer.token_text(token_id) == f"<{token_id}>"
    assert tokenizer.decode([97, 300, 98]) == "a<300>b"


def test_control_tokens_are_left_out_of_the_text_unless_asked_for():
    tokenizer = tiny([], added=[EOS, H1], eos_token_ids=[900])
    assert tokenizer.decode([97, 900, 901, 98]) == "a<h1>b"
    assert tokenizer.decode([97, 900, 901, 98], skip_control=False) == "a<eos><h1>b"
    assert tokenizer.control_tokens == {"<eos>": 900}
    assert tokenizer.control_ids == {900}
    assert tokenizer.eos_token_ids == {900}


def test_a_prompt_begins_with_what_the_rule_says():
    with_rule = tiny([], added=[EOS], bos_token_id=900, prompt_prefix=[900])
    without = tiny([], added=[EOS], bos_token_id=900)
    assert with_rule.encode("a", bos=True) == [900, 97]
    assert with_rule.encode("a") == without.encode("a", bos=True) == [97]


def test_bytes_without_a_token_are_dropped_as_in_hf():
    vocabulary = tiny([("a", "b")]).vocabulary
    byte_ids = [None if byte == 4 else byte for byte in range(256)]
    tokenizer = byte_bpe.ByteBPE(replace(vocabulary, byte_ids=tuple(byte_ids)))
    assert texts_of(tokenizer, "a\x04b") == ["ab"]


def test_the_cache_forgets_and_the_ids_stay_the_same(monkeypatch):
    monkeypatch.setattr(piece_cache, "CACHED_PIECES", 3)
    tokenizer = tiny([("a", "b")], patterns=[r"\S+"])
    words = "ab abab xaby ab b " + "ab" * 40
    first = tokenizer.encode(words)
    assert tokenizer.encode(words) == first
    assert len(tokenizer._cache) <= 3
    assert not any(len(piece) > piece_cache.LONGEST_CACHED_PIECE for piece in tokenizer._cache)


def test_threads_share_a_tokenizer(monkeypatch):
    monkeypatch.setattr(piece_cache, "CACHED_PIECES", 5)
    tokenizer = tiny([("a", "b"), ("ab", "ab")], patterns=[r"\S+"])
    text = " ".join("ab" * (n % 17) + "c" * (n % 3) for n in range(500))
    expected = tokenizer.encode(text)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(tokenizer.encode(text))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_the_sink_sees_the_pieces_of_what_is_encoded():
    seen = []
    tokenizer = tiny([("a", "b")], patterns=[GPT2], added=[EOS], sink=seen.append)
    silent = tiny([("a", "b")], patterns=[GPT2], added=[EOS])
    assert tokenizer.encode("ab c<eos>", control=True) == silent.encode("ab c<eos>", control=True)
    assert seen == [silent.encode_pieces("ab c<eos>", control=True)]


def test_the_fingerprint_tells_vocabularies_apart_and_nothing_else():
    merges = [("a", "b"), ("b", "c")]
    prints = [
        tiny(merges),
        tiny(merges[::-1]),
        tiny(merges, patterns=[GPT2]),
        tiny(merges, added=[EOS]),
        tiny(merges, added=[H1]),
        tiny(merges, whole=["abc"]),
        byte_bpe.ByteBPE(replace(tiny(merges).vocabulary, normal_form="NFC")),
    ]
    assert len({tokenizer.fingerprint for tokenizer in prints}) == len(prints)
    assert tiny(merges).fingerprint == tiny(merges, bos_token_id=3).fingerprint
    assert len(tiny(merges).fingerprint) == 64


def test_the_byte_tokenizer_has_256_tokens_and_an_end():
    tokenizer = byte_tokenizer(eos_token_id=300)
    assert tokenizer.encode("\u00e9\n") == [0xC3, 0xA9, 0x0A]
    assert tokenizer.encode("<eos>", control=True) == [300]
    assert tokenizer.decode([0xC3, 0xA9, 300, 290]) == "\u00e9<290>"
    assert tokenizer.eos_token_ids == {300}
    assert [piece.text for piece in tokenizer.encode_pieces("\u00e9\nx")] == ["\u00e9", "\n", "x"]
    assert byte_tokenizer(eos_token_id=None).vocab_size == 256
    with pytest.raises(AssertionError, match="the bytes themselves"):
        byte_tokenizer(eos_token_id=7)


@given(st.text(max_size=30))
def test_the_byte_tokenizer_gives_the_utf8_of_any_text(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == list(repair_surrogates(text).encode())


def test_negative_ids_are_a_fault_of_ours():
    with pytest.raises(AssertionError, match="count from 0"):
        tiny([]).token_bytes(-1)


def test_a_whole_text_can_be_one_piece():
    assert [piece.text for piece in tiny([], patterns=[WHOLE]).encode_pieces("a b\n")] == ["a b\n"]
