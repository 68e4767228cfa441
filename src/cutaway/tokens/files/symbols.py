"""Vocabulary parts from tokens written in GPT-2's byte alphabet, as tokenizer.json and GGUF do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

from cutaway.core.errors import ModelFormatError
from cutaway.core.limits import quote
from cutaway.tokens.merging import Pair, PairMerges
from cutaway.tokens.unicode import BYTE_SYMBOLS, symbols_to_bytes


def byte_ids(ids: Mapping[str, int]) -> tuple[int | None, ...]:
    """The token of each byte: the one that is its symbol. HF knows no other."""
    return tuple(ids.get(symbol) for symbol in BYTE_SYMBOLS)


def byte_or_raw_ids(ids: Mapping[str, int]) -> tuple[int | None, ...]:
    """The same, or else the token that is the raw byte itself: so llama.cpp has it."""
    return tuple(
        ids.get(symbol, ids.get(chr(byte)) if byte < 0x80 else None)
        for byte, symbol in enumerate(BYTE_SYMBOLS)
    )


def token_bytes(tokens: Iterable[tuple[int, str]]) -> dict[int, bytes]:
    """id -> bytes."""
    return {token_id: symbols_to_bytes(token) for token_id, token in tokens}


def pair_merges(
    ids: Mapping[str, int],
    merges: Sequence[str | Sequence[str]],
    *,
    control: AbstractSet[int],
    file: str,
    field: str,
) -> PairMerges:
    """Merges in order of rank, each a pair of tokens or one string with a blank between them.

    control: ids that no merge may make, so that plain text never becomes a control token. HF has
    no such rule; in no public vocabulary that we read does a merge make one.
    Raises: ModelFormatError naming the first merge that is no pair or whose parts or result are
    no tokens.
    """
    ranks: dict[Pair, int] = {}
    merged_ids: list[int] = []
    try:
        # One by one: a list of all pairs first took a third longer (49,000 merges, 101 to 77 ms).
        for rank, merge in enumerate(merges):
            # No token holds a blank: it is written as a symbol.
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            ranks[ids[left], ids[right]] = rank
            merged_ids.append(ids[left + right])
    except (KeyError, ValueError, TypeError):
        rank = len(merged_ids)
        raise _fault(ids, merges[rank], file, f"{field}[{rank}]") from None
    if not control.isdisjoint(merged_ids):
        ranks = {pair: rank for pair, rank in ranks.items() if merged_ids[rank] not in control}
    return PairMerges(ranks, merged_ids)


def _fault(ids: Mapping[str, int], merge: object, file: str, field: str) -> ModelFormatError:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    parts = cast("Sequence[object]", pair) if isinstance(pair, list | tuple) else ()
    if [type(part) for part in parts] != [str, str]:
        message = f"found {quote(merge)}; a merge must be two tokens."
        return ModelFormatError(message, file=file, field=field)
    left, right = cast("Sequence[str]", parts)
    missing = next(token for token in (left, right, left + right) if token not in ids)
    return ModelFormatError(
        f"{quote(missing)} is not in the vocabulary; both parts of a merge and its result must be.",
        file=file,
        field=field,
    )
