"""The ids of pieces seen before, so that a word is merged once and not at every occurrence."""

from __future__ import annotations

from collections.abc import Callable

from cutaway.host.turns import breathe

# Pieces whose ids are remembered: some 13 MB when full. A longer piece seldom comes twice.
CACHED_PIECES = 1 << 16
LONGEST_CACHED_PIECE = 64


class PieceCache(dict[str, tuple[int, ...]]):
    """Ids of pieces seen before; forgets all of them when full."""

    def __init__(self, encode_piece: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._encode_piece = encode_piece

    def __missing__(self, piece: str) -> tuple[int, ...]:
        breathe()
        token_ids = self._encode_piece(piece)
        if len(piece) <= LONGEST_CACHED_PIECE:
            if len(self) >= CACHED_PIECES:
                self.clear()
            self[piece] = token_ids
        return token_ids
