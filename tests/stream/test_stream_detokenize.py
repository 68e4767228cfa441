"""Pieces in a row are the decoded whole, whatever the bytes and however they are cut."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cutaway.stream.detokenize import MAX_HELD_BYTES, Detokenizer
from oracles import tokenizer_json


def byte(token_id: int) -> bytes:
    return bytes([token_id])


def pieces(tokens: list[bytes], *, skipped: frozenset[int] = frozenset()) -> list[str]:
    """What each token gives; at last what is left."""
    detokenizer = Detokenizer(tokens.__getitem__, skipped=skipped)
    given = [detokenizer.push(token_id) for token_id in range(len(tokens))]
    return [*given, detokenizer.finish()]


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(border % (len(data) + 1) for border in borders)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


# Random bytes are seldom the start of anything, so starts and ends of characters are thrown in.
shards = st.sampled_from(
    [
        *(
            b"\xf0\x9f\xa6\x99",
            b"\xf0\x9f\xa6",
            b"\xe2\x82",
            b"\xc3",
            b"\xa9",
            b"a",
            b"\xef\xbf\xbd",
        ),
        *(b"\xed\xa0\x80", b"\xf4\x90", b"\xc0\x80", b"\xf8", b"\xe0\x80", b"\xf0\x8f"),
    ]
)
streams = st.lists(shards | st.binary(max_size=3), max_size=12).map(b"".join)


def test_b01_a_character_comes_when_its_last_byte_has_come() -> None:
    tokens = [bytes([b]) for b in "\u00e9\U0001f999".encode()]
    assert pieces(tokens) == ["", "\u00e9", "", "", "", "\U0001f999", ""]


@given(data=streams, borders=st.lists(st.integers(0, 99), max_size=8))
def test_b01_pieces_equal_the_whole_for_every_way_of_cutting(
    data: bytes, borders: list[int]
) -> None:
    assert "".join(pieces(cut(data, borders))) == data.decode(errors="replace")


@given(text=st.text(max_size=20), borders=st.lists(st.integers(0, 99), max_size=8))
def test_b01_no_replacement_character_for_sound_text(text: str, borders: list[int]) -> None:
    assert "".join(pieces(cut(text.encode(), borders))) == text


@given(data=streams, borders=st.lists(st.integers(0, 99), max_size=8))
def test_b02_at_most_three_bytes_wait(data: bytes, borders: list[int]) -> None:
    detokenizer = Detokenizer(cut(data, borders).__getitem__)
    reference = codecs.getincrementaldecoder("utf-8")("replace")
    for token_id, token in enumerate(cut(data, borders)):
        assert detokenizer.push(token_id) == reference.decode(token)
        assert len(detokenizer.held) <= MAX_HELD_BYTES
        assert b"".join(cut(data, borders)[: token_id + 1]).endswith(detokenizer.held)


def test_b02_bytes_that_never_become_a_character_come_at_once() -> None:
    assert pieces([b"\x80"] * 1000) == ["\ufffd"] * 1000 + [""]


def test_b02_a_replacement_character_of_the_models_own_is_text_like_any_other() -> None:
    assert pieces([b"\xef", b"\xbf", b"\xbd", b"a"]) == ["", "", "\ufffd", "a", ""]


@pytest.mark.parametrize("second", range(0x80, 0xC0))
@pytest.mark.parametrize("first", [0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4])
def test_b02_what_can_no_longer_become_a_character_does_not_wait(first: int, second: int) -> None:
    detokenizer = Detokenizer(byte)
    shown = detokenizer.push(first) + detokenizer.push(second)
    assert shown + detokenizer.finish() == bytes([first, second]).decode(errors="replace")


def test_b03_blanks_at_the_border_of_tokens_stay() -> None:
    assert pieces([b"a", b".", b" It", b" ", b" is"]) == ["a", ".", " It", " ", " is", ""]


def test_b03_skipped_tokens_in_the_middle_take_no_blank_with_them() -> None:
    tokens = [b"a.", b"<|end|>", b" It is"]
    assert pieces(tokens, skipped=frozenset([1])) == ["a.", "", " It is", ""]
    assert pieces(tokens) == ["a.", "<|end|>", " It is", ""]


def test_b03_a_skipped_token_does_not_break_a_character() -> None:
    tokens = [b"\xc3", b"<|end|>", b"\xa9"]
    assert pieces(tokens, skipped=frozenset([1])) == ["", "", "\u00e9", ""]


def test_b04_bytes_that_dangle_at_the_end_become_one_replacement_character() -> None:
    llama = "\U0001f999".encode()
    assert pieces([llama[:1], llama[1:2]]) == ["", "", "\ufffd"]
    assert pieces([llama[:3]]) == ["", "\ufffd"]


def test_p6_held_bytes_can_be_seen() -> None:
    detokenizer = Detokenizer(byte)
    seen = []
    for token_id in "\U0001f999".encode():
        detokenizer.push(token_id)
        seen.append(detokenizer.held)
    assert seen == [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\xa6", b""]


@pytest.mark.oracle
@given(data=st.data())
def test_b03_pieces_equal_the_references_decoding(data: st.DataObject) -> None:
    tokenizer, bytes_of, special = qwen()
    ids = data.draw(
        st.lists(
            st.integers(0, 151_642) | st.integers(0, 255) | st.sampled_from(sorted(special)),
            max_size=12,
        )
    )
    detokenizer = Detokenizer(bytes_of, skipped=special)
    text = "".join([*map(detokenizer.push, ids), detokenizer.finish()])
    assert text == tokenizer.decode(ids, skip_special_tokens=True)


@cache
def qwen() -> tuple[Tokenizer, Callable[[int], bytes], frozenset[int]]:
    """Qwen3's tokenizer, the bytes of its tokens, and its special tokens."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json("qwen3")))
    # The GPT-2 alphabet: printable Latin-1 stands for itself, the rest is moved up from 256.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in plain]
    byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}
    added = tokenizer.get_added_tokens_decoder()
    special = frozenset(i for i, token in added.items() if token.special)

    def bytes_of(token_id: int) -> bytes:
        token = tokenizer.id_to_token(token_id)
        return token.encode() if token_id in added else bytes(byte_of[c] for c in token)

    return tokenizer, bytes_of, special
