"""Text made fit for a tokenizer: surrogates repaired, normal forms, and GPT-2's byte alphabet."""

from __future__ import annotations

import unicodedata
from typing import Literal

import regex

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

_LONG_MARKS = regex.compile(r"[^\p{ccc=0}]{32,}")


def is_unicode(text: str) -> bool:
    """Whether a text is free of surrogates, which are no characters and have no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs; put U+FFFD for a lone surrogate. Every way into a tokenizer uses it.

    Source: tiktoken's rule, so that JSON with escaped surrogates and plain text agree.
    """
    if is_unicode(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def normalize(text: str, form: NormalForm) -> str:
    """Text in a Unicode normal form, in time that is linear in its length."""
    if text.isascii():
        return text
    # CPython orders a run of combining marks by insertion: 40,000 marks took 1.2 s. Sorted
    # beforehand (the order that the normal form asks for) they take a millisecond.
    text = _LONG_MARKS.sub(lambda run: "".join(sorted(run[0], key=unicodedata.combining)), text)
    return unicodedata.normalize(form, text)


def _byte_symbols() -> tuple[str, ...]:
    """A printable character for each byte: itself where it is printable, else one from U+0100.

    Source: GPT-2, encoder.py, bytes_to_unicode.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    stand_ins = {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    return tuple(stand_ins.get(byte, chr(byte)) for byte in range(256))


# BYTE_SYMBOLS[byte] is the character that stands for it in a vocabulary file.
BYTE_SYMBOLS = _byte_symbols()

# Latin-1 characters that stand for no byte must fail to encode, hence the U+FFFF.
_TO_LATIN1 = {ord(symbol): byte for byte, symbol in enumerate(BYTE_SYMBOLS)} | {
    code: 0xFFFF for code in range(256) if chr(code) not in BYTE_SYMBOLS
}


def symbols_to_bytes(token: str) -> bytes:
    """Bytes of a token as a byte-level vocabulary writes it.

    A token with other characters stands for its own UTF-8, as in HF's decoder.
    """
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()
