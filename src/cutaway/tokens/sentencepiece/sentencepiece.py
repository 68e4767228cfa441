"""SentencePiece: text to pieces that carry their blanks, and to bytes where no piece fits.

It knows no file format (see spm_files.py and spm_json.py) and no chat template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Literal

from cutaway.tokens.added import AddedToken, AddedTokenFinder
from cutaway.tokens.piece_cache import PieceCache
from cutaway.tokens.sentencepiece.normalizing import Normalizer, Splitting
from cutaway.tokens.sentencepiece.subword import SPACE, Subword
from cutaway.tokens.tokenizer import Merge, Piece, PieceSink, ScoredPiece
from cutaway.tokens.unicode import repair_surrogates


@dataclass(frozen=True, kw_only=True)
class SentencePieceVocabulary:
    """Everything that decides which ids a text becomes, and which text ids become.

    token_bytes: id -> bytes, blanks as blanks, added tokens included.
    subword:     how a piece becomes ids.
    normalize:   what is done to text first.
    splittings:  how normalized text is cut before pieces are looked for.
    added:       tokens that are found before that; is_normalized ones in the normalized text, as
                 their content stands here.
    first_blank: what becomes of the blank in front of a decoded text, since encode put it there:
                 it is kept, or goes, or all blanks of the first token go, or that of each token
                 goes while the text is empty.
    with_own_blank: ids whose own blanks stay even there: bytes, added tokens, and the sign for
                 unknown text.
    """

    token_bytes: Mapping[int, bytes]
    subword: Subword
    normalize: Normalizer
    splittings: tuple[Splitting, ...] = ()
    added: tuple[AddedToken, ...] = ()
    first_blank: Literal["kept", "one goes", "all of the first go", "each goes"] = "kept"
    with_own_blank: frozenset[int] = frozenset()


class SentencePiece:
    """A tokenizer (tokenizer.py says what each method gives) over one vocabulary.

    bos_token_id, eos_token_ids: what begins a text, what ends an answer.
    prompt_prefix: ids that encode puts in front with bos=True.
    sink: called with the pieces of every text that is encoded.
    """

    def __init__(
        self,
        vocabulary: SentencePieceVocabulary,
        *,
        control_tokens: Mapping[str, int],
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        prompt_prefix: Iterable[int] = (),
        sink: PieceSink | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.bos_token_id = bos_token_id
        self.eos_token_ids = frozenset(eos_token_ids)
        self.prompt_prefix = tuple(prompt_prefix)
        self.vocab_size = max(vocabulary.token_bytes) + 1
        self.control_tokens: Mapping[str, int] = MappingProxyType(dict(control_tokens))
        self.control_ids = frozenset(self.control_tokens.values())
        self._cache = PieceCache(vocabulary.subword.token_ids)
        self._finders: dict[tuple[bool, bool], AddedTokenFinder] = {}
        self._sink = sink

    def encode(
        self, text: str, *, control: bool = False, bos: bool = False, is_start: bool = True
    ) -> list[int]:
        """Token ids of a text, as Tokenizer.encode says."""
        token_ids = self._encode(repair_surrogates(text), control, is_start)
        return [*self.prompt_prefix, *token_ids] if bos else token_ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids that spell these bytes and nothing more: no rules, no blank in front."""
        subword = self.vocabulary.subword
        token_ids: list[int] = []
        # Bytes that are no characters travel as lone surrogates, which repaired text never holds.
        for at, part in enumerate(data.decode("utf-8", "surrogateescape").split(SPACE)):
            if at:  # as a piece it would be a blank
                token_ids += subword.fallback.token_ids(SPACE)
            pieces = subword.cut(part.replace(" ", SPACE))
            token_ids.extend(chain.from_iterable(map(self._cache.__getitem__, pieces)))
        return token_ids

    def encode_pieces(self, text: str, *, control: bool = False) -> list[Piece]:
        """The same ids as encode, with the stretches of text that they came from."""
        return self._pieces(repair_surrogates(text), control, True)

    def merges(self, piece: str) -> Iterator[Merge]:
        """The merges of one piece as encode_pieces gives it; none in a unigram vocabulary."""
        return self.vocabulary.subword.merges(repair_surrogates(piece))

    def best_cut(self, piece: str) -> tuple[ScoredPiece, ...]:
        """The parts of one piece where the vocabulary cuts by scores; none where it merges."""
        return tuple(self.vocabulary.subword.best_cut(repair_surrogates(piece)))

    def decode(self, token_ids: Iterable[int], *, skip_control: bool = True) -> str:
        """Text of token ids; bytes that are no characters become U+FFFD."""
        if skip_control:
            token_ids = (i for i in token_ids if i not in self.control_ids)
        return self.decode_bytes(token_ids).decode("utf-8", "replace")

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """Bytes of a text from its beginning: the blank that encode put in front is taken away."""
        ids = iter(token_ids)
        first = b"" if self.vocabulary.first_blank == "kept" else self._first_bytes(ids)
        return first + b"".join(map(self.token_bytes, ids))

    def _first_bytes(self, token_ids: Iterator[int]) -> bytes:
        """Bytes of the first tokens, up to the first that leaves any."""
        rules = self.vocabulary
        for token_id in token_ids:
            data = self.token_bytes(token_id)
            if rules.first_blank == "all of the first go":
                return data if token_id in rules.with_own_blank else data.replace(b" ", b"")
            if token_id in rules.with_own_blank or not data.startswith(b" "):
                return data
            if rules.first_blank == "one goes" or len(data) > 1:
                return data[1:]
        return b""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; an id without a token gives its number, as in <50300>."""
        assert token_id >= 0, "token ids count from 0"
        known = self.vocabulary.token_bytes.get(token_id)
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
        digest, rules = hashlib.sha256(), self.vocabulary
        for token_id, token in sorted(rules.token_bytes.items()):
            digest.update(b"%d %d " % (token_id, len(token)) + token)
        for rule in (rules.normalize, rules.splittings, rules.added, rules.first_blank):
            digest.update(repr(rule).encode())
        for rule in rules.subword.describe():
            digest.update(rule.encode())
        return digest.hexdigest()

    def _encode(self, text: str, control: bool, is_start: bool) -> list[int]:
        if self._sink is not None:
            pieces = self._pieces(text, control, is_start)
            self._sink(pieces)
            return [token_id for piece in pieces for token_id in piece.token_ids]
        token_ids: list[int] = []
        for stretch, token_id, is_first in self._stretches(text, control, is_start):
            if token_id is not None:
                token_ids.append(token_id)
            else:
                pieces = self._cut(stretch, is_first)
                token_ids.extend(chain.from_iterable(map(self._cache.__getitem__, pieces)))
        return token_ids

    def _pieces(self, text: str, control: bool, is_start: bool) -> list[Piece]:
        pieces: list[Piece] = []
        for stretch, token_id, is_first in self._stretches(text, control, is_start):
            if token_id is not None:
                pieces.append(Piece(stretch, (token_id,), is_added=True))
            else:
                pieces += [Piece(p, self._cache[p]) for p in self._cut(stretch, is_first)]
        return pieces

    def _cut(self, stretch: str, is_first: bool) -> list[str]:
        """A normalized stretch as pieces."""
        if not self.vocabulary.splittings:
            return self.vocabulary.subword.cut(stretch)
        parts = [(stretch, is_first)]
        for splitting in self.vocabulary.splittings:
            parts = splitting(parts)
        cut = self.vocabulary.subword.cut
        return [piece for part, _ in parts for piece in cut(part)]

    def _stretches(
        self, text: str, control: bool, is_start: bool
    ) -> Iterator[tuple[str, int | None, bool]]:
        """The text, normalized, cut at added tokens: each stretch, its id if it is one, and
        whether the text starts with it."""
        in_raw = self._finder(is_normalized=False, control=control)
        in_normalized = self._finder(is_normalized=True, control=control)
        for stretch, token_id in in_raw.cut(text):
            if token_id is not None:
                yield stretch, token_id, is_start
                is_start = False
                continue
            normalized = self.vocabulary.normalize(stretch, is_start=is_start)
            for part, part_id in in_normalized.cut(normalized):
                yield part, part_id, is_start
                is_start = False

    def _finder(self, *, is_normalized: bool, control: bool) -> AddedTokenFinder:
        """What to find in normalized or raw text, made when it is first wanted.

        Gemma 3's GGUF names 6,249 control tokens, which few texts are searched for.
        """
        found = self._finders.get((is_normalized, control))
        if found is None:
            found = self._finders[is_normalized, control] = AddedTokenFinder(
                token
                for token in self.vocabulary.added
                if token.is_normalized == is_normalized and (control or not token.is_control)
            )
        return found
