"""A tokenizer for models without a vocabulary: each byte of the text is its own token."""

from __future__ import annotations

from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE, Vocabulary
from cutaway.tokens.merging import PairMerges

ONE_CHARACTER = r"(?s:.)"


def byte_tokenizer(*, eos_token_id: int | None = 256) -> ByteBPE:
    """Tokens 0 to 255 are the bytes; <eos> is the one token beside them, if there is one."""
    assert eos_token_id is None or eos_token_id > 255, "ids 0 to 255 are the bytes themselves"
    eos = [] if eos_token_id is None else [eos_token_id]
    vocabulary = Vocabulary(
        token_bytes={byte: bytes([byte]) for byte in range(256)},
        byte_ids=tuple(range(256)),
        merges=PairMerges({}, []),
        patterns=(ONE_CHARACTER,),
        added=tuple(AddedToken(token_id=i, content="<eos>", is_control=True) for i in eos),
    )
    return ByteBPE(vocabulary, eos_token_ids=eos)
