"""A number of tokens that texts have in any case, known without encoding them."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from functools import cached_property

from cutaway.tokens.byte_bpe import ByteBPE
from cutaway.tokens.tokenizer import Tokenizer

_LETTERS = (string.ascii_letters + string.digits).encode()
_OTHERS = bytes(set(range(256)) - set(_LETTERS))
# A normal form makes one character of a letter and the mark behind it.
_UNMARKED = re.compile(r"[0-9A-Za-z](?=[\x00-\x7f])")


class FewestTokens:
    """Counts by the letters and digits of ASCII: in byte-level BPE each lies in exactly one token.

    Of other characters some may be stripped, dropped or composed; of other vocabularies nothing is
    known.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, texts: Iterable[str]) -> int:
        """At least so many tokens come of these texts together."""
        total = sum(map(self._count, texts)) if self._most else 0
        return -(-total // self._most) if total else 0

    @cached_property
    def _most(self) -> int:
        """Letters of the token that has most; 0 where a letter may be in none."""
        tokenizer = self._tokenizer
        if not isinstance(tokenizer, ByteBPE):
            return 0
        vocabulary = tokenizer.vocabulary
        if any(vocabulary.byte_ids[letter] is None for letter in _LETTERS):
            return 0
        added = (token.content.encode() for token in vocabulary.added)
        names = (*vocabulary.token_bytes.values(), *added)
        return max(len(name.translate(None, _OTHERS)) for name in names)

    def _count(self, text: str) -> int:
        tokenizer = self._tokenizer
        has_form = isinstance(tokenizer, ByteBPE) and tokenizer.vocabulary.normal_form is not None
        if has_form and not text.isascii():
            return sum(1 for _ in _UNMARKED.finditer(text))
        return len(text.encode("utf-8", "replace").translate(None, _OTHERS))
