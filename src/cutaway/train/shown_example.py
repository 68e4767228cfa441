"""An example of what a run learns from, for whoever looks on: its tokens, and which are scored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cutaway.host.run_record import EXAMPLE
from cutaway.host.whole_file import write_whole
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.packing import ScoredSequence

MOST_SEQUENCES = 2  # of a pair both sides
MOST_TOKENS = 256  # of each


def scored_sequences(batch: Any) -> Iterator[ScoredSequence]:
    """What one forward of an update learns from: of pairs both sides, of rounds what was said."""
    if hasattr(batch, "pairs"):
        return (side for pair in batch.pairs for side in pair.sides)
    return iter((batch.part.batch if hasattr(batch, "part") else batch).sequences)


def write_example(folder: Path, batches: Sequence[Any], tokenizer: Tokenizer) -> None:
    """The first sequences of an update, as [text, whether it is scored] of each token.

    Raises: OSError naming the file.
    """
    sequences = (each for batch in batches for each in scored_sequences(batch))
    told = [
        [
            [tokenizer.token_text(token_id), is_scored]
            for token_id, is_scored in zip(
                sequence.token_ids[:MOST_TOKENS], sequence.is_scored, strict=False
            )
        ]
        for _, sequence in zip(range(MOST_SEQUENCES), sequences, strict=False)
    ]
    write_whole(folder / EXAMPLE, json.dumps(told, ensure_ascii=False) + "\n")
