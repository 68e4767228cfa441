"""Token ids to text while they come: bytes in, characters out as soon as they are whole.

Knows no vocabulary: it is handed a function that gives the bytes of a token.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

MAX_HELD_BYTES = 3  # the longest start of a character in UTF-8 that is not yet a character

TokenBytes = Callable[[int], bytes]


class Detokenizer:
    """The text of one answer.

    All pieces in a row equal the bytes of all tokens in a row, decoded with errors="replace":
    for every way of cutting, and with a U+FFFD for bytes that are left dangling at the end. What
    can no longer become a character is given out as U+FFFD at once, so no more than
    MAX_HELD_BYTES ever wait, and a push costs what its token's bytes cost.

    skipped: ids that give no bytes, such as control tokens.
    """

    def __init__(self, token_bytes: TokenBytes, *, skipped: frozenset[int] = frozenset()) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.held = b""  # bytes that wait for the rest of their character

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to the answer."""
        return b"" if token_id in self._skipped else self._token_bytes(token_id)

    def push(self, token_id: int) -> str:
        """The characters that are whole now and were not before."""
        new = b"" if token_id in self._skipped else self._token_bytes(token_id)
        if not self.held and new.isascii():  # whole characters: the decoder need not be told
            return new.decode()
        text = self._decoder.decode(new)
        self.held = self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        """A U+FFFD if bytes are left that are no whole character."""
        self.held = b""
        return self._decoder.decode(b"", final=True)
