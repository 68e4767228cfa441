"""What the engine asks of a tokenizer, whatever its kind; no vocabulary and no algorithm here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Piece:
    """A stretch of text that is encoded by itself, and the ids that it became.

    text: as it stood after normalization; the texts of all pieces, joined, are the whole.
    is_added: whether an added token matched, so that nothing was split or merged.
    """

    text: str
    token_ids: tuple[int, ...]
    is_added: bool = False


@dataclass(frozen=True)
class Merge:
    """One merge inside a piece: two neighbours became one token."""

    rank: int  # the lowest rank in the piece goes first
    left: bytes
    right: bytes
    token_id: int
    parts: tuple[bytes, ...]  # the whole piece after this merge


@dataclass(frozen=True)
class ScoredPiece:
    """A part of the best cut of a text by a unigram vocabulary; the sum of scores is the highest.

    token_id: None for a character that no piece has.   score: a log-probability.
    """

    part: bytes
    token_id: int | None
    score: float


# Called with the pieces of every text that is encoded.
PieceSink = Callable[[Sequence[Piece]], None]


class Tokenizer(Protocol):
    """Maps text to token ids and back.

    Control tokens mean something to the model (end of text, start of a turn). Their names are
    plain text unless control=True, so that a message cannot forge them.
    """

    @property
    def vocab_size(self) -> int:
        """Highest id plus one; a model may have more rows than that, never fewer."""
        ...

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Name -> id of the control tokens."""
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that starts a text; None where there is none."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 in hex: equal for tokenizers that give equal ids for every text."""
        ...

    def encode(
        self, text: str, *, control: bool = False, bos: bool = False, is_start: bool = True
    ) -> list[int]:
        """Token ids of a text.

        control: whether names of control tokens become those tokens.
        bos:     put in front what this tokenizer's own rule puts in front of a prompt, which may
                 be nothing.
        is_start: whether nothing stands before the text; SentencePiece may put a blank there.
        """
        ...

    def encode_bytes(self, data: bytes) -> list[int]:
        """Token ids of plain bytes, which need not be whole characters."""
        ...

    def encode_pieces(self, text: str, *, control: bool = False) -> list[Piece]:
        """The same ids as encode, with the stretches of text that they came from."""
        ...

    def merges(self, piece: str) -> Iterator[Merge]:
        """The merges of one piece in the order in which they happen; bound the piece's length.

        Every merge copies the whole piece, so all of them take time quadratic in its length.
        """
        ...

    def best_cut(self, piece: str) -> Sequence[ScoredPiece]:
        """The parts of one piece where a vocabulary cuts by scores; none where it merges."""
        ...

    def decode(self, token_ids: Iterable[int], *, skip_control: bool = True) -> str:
        """Text of token ids; bytes that are no characters become U+FFFD."""
        ...

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """Exact bytes of a text's token ids, control tokens included.

        SentencePiece leaves out the blank that encode puts in front.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; an id without a token gives its number, as in <50300>."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as a person may read it: bytes that are no characters as \\xe6."""
        ...
