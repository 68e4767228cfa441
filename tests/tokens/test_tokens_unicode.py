"""Normal forms in linear time, and GPT-2's byte alphabet."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.tokens.unicode import BYTE_SYMBOLS, normalize, symbols_to_bytes

MARKS = "\u0315\u0300\u0327\u0345\u0344\u034f\u3099\u05b0\u0f71\u0301"


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(st.text(st.one_of(st.sampled_from(MARKS), st.sampled_from("ae\u00e9\u1ead\ufb01\uac00"))))
def test_long_runs_of_marks_are_normalized_as_the_standard_says(form, text):
    for repeated in (text, text * 12):
        assert normalize(repeated, form) == unicodedata.normalize(form, repeated)


def test_400_000_marks_in_the_wrong_order_take_no_minutes():
    # Sorted by insertion, as CPython does, this takes about two minutes.
    marks = "\u0315\u0300" * 200_000
    assert normalize("a" + marks, "NFC") == "\u00e0" + "\u0300" * 199_999 + "\u0315" * 200_000


def test_the_byte_alphabet_is_gpt2s():
    assert len(set(BYTE_SYMBOLS)) == 256
    assert [BYTE_SYMBOLS[byte] for byte in b"\x00 \n!A\x7f\xa0\xad\xff"] == [*"ĀĠĊ!AġłŃÿ"]
    assert all(symbol.isprintable() and not symbol.isspace() for symbol in BYTE_SYMBOLS)
    for byte, symbol in enumerate(BYTE_SYMBOLS):
        assert symbols_to_bytes(symbol) == bytes([byte])


@pytest.mark.parametrize("token", [" ", "a b", "\xa0", "\xad", "\0", "\u4e2d", "\U0001f44d"])
def test_a_token_outside_the_alphabet_stands_for_its_own_utf8(token):
    assert symbols_to_bytes(token) == token.encode()
