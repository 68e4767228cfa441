"""Byte-level BPE: text to bytes, and bytes to token ids by merges.

It knows no file format (see files.py) and no chat template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from types import MappingProxyType

from cutaway.tokens.added import AddedToken, AddedTokenFinder
from cutaway.tokens.merging import NO_MERGE, MergeTable, merge
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.piece_cache import PieceCache
from cutaway.tokens.splitting import Splitter
from cutaway.tokens.tokenizer import Merge, Piece, PieceSink, ScoredPiece
from cutaway.tokens.unicode import NormalForm, normalize, repair_surrogates

Split = Callable[[str], list[str]]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Everything that decides which ids a text becomes.

    token_bytes:  id -> bytes, added tokens aside; numbers may be missing.
    byte_ids:     the token of each of the 256 bytes; None where there is none.
    merges:       which neighbours merge.
    patterns:     how text is cut before merging.
    added:        tokens that are found before anything is cut.
    normal_form:  Unicode normal form that the text is put in, if any.
    whole_pieces: pieces that are a token and are taken whole, whatever the merges say.
    adds_blank:   each stretch between added tokens begins with a blank, its own or one more.
    """

    token_bytes: Mapping[int, bytes]
    byte_ids: tuple[int | None, ...]
    merges: MergeTable
    patterns: tuple[str | OnigurumaPattern, ...]
    added: tuple[AddedToken, ...] = ()
    normal_form: NormalForm | None = None
    whole_pieces: Mapping[bytes, int] = field(default_factory=dict[bytes, int])
    adds_blank: bool = False


class ByteBPE:
    """A tokenizer (tokenizer.py says what each method gives) over one vocabulary.

    A byte that has no token is dropped, as in HF. SmolLM2 lacks 21: six control characters
    (U+0004 for one), the first byte of U+40000 to U+BFFFF, and bytes that UTF-8 never uses.

    bos_token_id, eos_token_ids: what begins a text, what ends an answer.
    prompt_prefix: ids that encode puts in front with bos=True.
    sink: called with the pieces of every text that is encoded.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        prompt_prefix: Iterable[int] = (),
        sink: PieceSink | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.bos_token_id = bos_token_id
        self.eos_token_ids = frozenset(eos_token_ids)
        self.prompt_prefix = tuple(prompt_prefix)
        added = {token.token_id: token.content.encode() for token in vocabulary.added}
        self._token_bytes = {**vocabulary.token_bytes, **added}
        self.vocab_size = max(self._token_bytes) + 1
        self.control_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: token.token_id for token in vocabulary.added if token.is_control}
        )
        self.control_ids = frozenset(self.control_tokens.values())
        self._splitter = Splitter(vocabulary.patterns)
        self._cache = PieceCache(self._encode_piece)
        self._sink = sink

    def encode(
        self, text: str, *, control: bool = False, bos: bool = False, is_start: bool = True
    ) -> list[int]:
        """Token ids of a text, as Tokenizer.encode says."""
        del is_start  # a blank is put in front of every stretch, or of none
        token_ids = self._encode(repair_surrogates(text), control, self._split)
        return [*self.prompt_prefix, *token_ids] if bos else token_ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """Token ids of plain bytes, which need not be whole characters."""
        # Bytes that are no characters travel as lone surrogates, which repaired text never holds.
        text = data.decode("utf-8", "surrogateescape")
        return self._encode(text, control=False, split=self._splitter.split)

    def encode_pieces(self, text: str, *, control: bool = False) -> list[Piece]:
        """The same ids as encode, with the stretches of text that they came from."""
        return self._pieces(repair_surrogates(text), control, self._split)

    def merges(self, piece: str) -> Iterator[Merge]:
        """The merges of one piece, also where encode takes the piece whole without them."""
        table = self.vocabulary.merges
        parts = self._byte_tokens(repair_surrogates(piece))
        while True:
            ranks = [table.rank(pair, NO_MERGE) for pair in pairwise(parts)]
            rank = min(ranks, default=NO_MERGE)
            if rank == NO_MERGE:
                return
            at = ranks.index(rank)
            left, right = (self.token_bytes(part) for part in parts[at : at + 2])
            token_id = table.merged_ids[rank]
            parts[at : at + 2] = [token_id]
            yield Merge(rank, left, right, token_id, tuple(map(self.token_bytes, parts)))

    def best_cut(self, piece: str) -> tuple[ScoredPiece, ...]:
        """Nothing: this vocabulary merges and has no scores."""
        del piece
        return ()

    def decode(self, token_ids: Iterable[int], *, skip_control: bool = True) -> str:
        """Text of token ids; bytes that are no characters become U+FFFD."""
        if skip_control:
            token_ids = (i for i in token_ids if i not in self.control_ids)
        return self.decode_bytes(token_ids).decode("utf-8", "replace")

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """Exact bytes of a text's token ids, control tokens included."""
        return b"".join(map(self.token_bytes, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; an id without a token gives its number, as in <50300>."""
        assert token_id >= 0, "token ids count from 0"
        known = self._token_bytes.get(token_id)
        return f"<{token_id}>".encode() if known is None else known

    def token_text(self, token_id: int) -> str:
        """One token as a person may read it: bytes that are no characters as \\xe6."""
        return self.token_bytes(token_id).decode("utf-8", "backslashreplace")

    @property
    def fingerprint(self) -> str:
        """sha256 in hex: equal for tokenizers that give equal ids for every text."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for token_id, token in sorted(self.vocabulary.token_bytes.items()):
            digest.update(b"%d %d " % (token_id, len(token)) + token)
        rules = self.vocabulary
        for rule in (rules.byte_ids, rules.patterns, rules.added, rules.normal_form):
            digest.update(repr(rule).encode())
        digest.update(f"{bool(rules.whole_pieces)} {rules.merges.describe()}".encode())
        if rules.adds_blank:  # hashes of all others stay what they were
            digest.update(b" adds a blank")
        return digest.hexdigest()

    def _encode(self, text: str, control: bool, split: Split) -> list[int]:
        if self._sink is not None:
            pieces = self._pieces(text, control, split)
            self._sink(pieces)
            return [token_id for piece in pieces for token_id in piece.token_ids]
        token_ids: list[int] = []
        for stretch, token_id in self._stretches(text, control):
            if token_id is not None:
                token_ids.append(token_id)
            else:
                pieces = split(stretch)
                token_ids.extend(chain.from_iterable(map(self._cache.__getitem__, pieces)))
        return token_ids

    def _pieces(self, text: str, control: bool, split: Split) -> list[Piece]:
        pieces: list[Piece] = []
        for stretch, token_id in self._stretches(text, control):
            if token_id is not None:
                pieces.append(Piece(stretch, (token_id,), is_added=True))
            else:
                pieces += [Piece(p, self._cache[p]) for p in split(stretch)]
        return pieces

    def _split(self, stretch: str) -> list[str]:
        """Pieces of a stretch of text, behind a blank where the vocabulary wants one."""
        has_own = not self.vocabulary.adds_blank or stretch.startswith(" ")
        return self._splitter.split(stretch if has_own else f" {stretch}")

    def _stretches(self, text: str, control: bool) -> Iterator[tuple[str, int | None]]:
        """The text, normalized, cut at added tokens; each stretch with its id if it is one."""
        in_raw, in_normalized = self._all_finders if control else self._ordinary_finders
        for stretch, token_id in in_raw.cut(text):
            if token_id is not None:
                yield stretch, token_id
            else:
                yield from in_normalized.cut(self._normalize(stretch))

    def _normalize(self, text: str) -> str:
        form = self.vocabulary.normal_form
        return text if form is None else normalize(text, form)

    @cached_property
    def _all_finders(self) -> tuple[AddedTokenFinder, AddedTokenFinder]:
        return self._finders(self.vocabulary.added)

    @cached_property
    def _ordinary_finders(self) -> tuple[AddedTokenFinder, AddedTokenFinder]:
        return self._finders([token for token in self.vocabulary.added if not token.is_control])

    def _finders(self, tokens: Iterable[AddedToken]) -> tuple[AddedTokenFinder, AddedTokenFinder]:
        raw = [token for token in tokens if not token.is_normalized]
        normalized = [
            replace(token, content=self._normalize(token.content))
            for token in tokens
            if token.is_normalized
        ]
        return AddedTokenFinder(raw), AddedTokenFinder(normalized)

    def _byte_tokens(self, piece: str) -> list[int]:
        byte_ids = self.vocabulary.byte_ids
        tokens = (byte_ids[byte] for byte in piece.encode("utf-8", "surrogateescape"))
        return [token_id for token_id in tokens if token_id is not None]

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        whole_pieces = self.vocabulary.whole_pieces
        if whole_pieces:
            whole = whole_pieces.get(piece.encode("utf-8", "surrogateescape"))
            if whole is not None:
                return (whole,)
        return tuple(merge(self._byte_tokens(piece), self.vocabulary.merges))
