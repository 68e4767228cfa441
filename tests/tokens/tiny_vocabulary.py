"""Vocabularies small enough to write in a test: 256 bytes and a few merges."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE, Vocabulary
from cutaway.tokens.merging import PairMerges

WHOLE = r"(?s:.+)"  # the text is one piece


def tiny(
    merges: Sequence[tuple[str, str]] = (),
    *,
    patterns: Sequence[str] = (WHOLE,),
    added: Sequence[AddedToken] = (),
    whole: Sequence[str] = (),
    **more,
) -> ByteBPE:
    """Bytes are tokens 0 to 255, merges follow in order of rank, then whole pieces."""
    tokens = {bytes([byte]): byte for byte in range(256)}
    ranks, merged_ids = {}, []
    for rank, (left, right) in enumerate(merges):
        ranks[tokens[left.encode()], tokens[right.encode()]] = rank
        merged_ids.append(tokens.setdefault((left + right).encode(), len(tokens)))
    whole_pieces = {
        piece.encode(): tokens.setdefault(piece.encode(), len(tokens)) for piece in whole
    }
    if whole:  # a vocabulary that takes one token whole takes every token whole
        whole_pieces |= tokens
    return ByteBPE(
        Vocabulary(
            token_bytes={token_id: token for token, token_id in tokens.items()},
            byte_ids=tuple(range(256)),
            merges=PairMerges(ranks, merged_ids),
            patterns=tuple(patterns),
            added=tuple(added),
            whole_pieces=whole_pieces,
        ),
        **more,
    )


def texts_of(tokenizer: ByteBPE, text: str, *, control: bool = False) -> list[str]:
    """What each token of a text says."""
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, control=control)]
