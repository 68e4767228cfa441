"""Text made fit for a tokenizer: surrogates repaired, normal forms, and GPT-2's byte alphabet."""

from __future__ import annotations

import unicodedata
from typing import Literal

import regex

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

_LONG_MARKS = regex.compile(r"[^\p{ccc=0}]{32,}")

# Assigned since Unicode 11, which HF's tokenizers 0.23 normalize by, where a newer normal form does
# anything to them; scripts in which two characters may become one stand whole.
_SINCE_11 = """
558 58b-58c 5c8-5c9 7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1af0 1df6-1dfa 209d-209f 32ff
a7f1-a7f4 a82c ab69 105c0-105ff 10781-10785 10787-107b0 107b2-107bf 10d24-10d27 10d69-10d6d
10eab-10eac 10ecb-10ecf 10ef0-10efb 10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 11380-113ff
1145e 11839-1183a 11930-11938 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97
11f41-11f42 16100-1613f 16d40-16d7f 16ff0-16ff1 1b123-1b126 1ccd6-1ccf9 1d127-1d128 1d250-1d252
1d25b-1d25c 1d25f 1d280-1d281 1d6a6 1df95 1dfcd-1dfff 1e030-1e06d 1e08f 1e130-1e136 1e2ae
1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1f16c 1fbf0-1fbf9
"""


def class_members(ranges: str) -> str:
    """Members of a character class for ranges in hexadecimal, as "41 61-7a"."""
    parts = (each.partition("-")[::2] for each in ranges.split())
    return "".join(f"{chr(int(a, 16))}-{chr(int(b or a, 16))}" for a, b in parts)


_NEWER = regex.compile(f"([{class_members(_SINCE_11)}]+)")


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
    """Text in a Unicode normal form as HF's tokenizers have it, in time linear in its length.

    Characters that are newer than their Unicode stay as they are, and nothing goes across them.
    """
    if text.isascii():
        return text
    if _NEWER.search(text) is not None:
        parts = _NEWER.split(text)  # every second one is newer
        parts[::2] = [_normalize(part, form) for part in parts[::2]]
        return "".join(parts)
    return _normalize(text, form)


def _normalize(text: str, form: NormalForm) -> str:
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
