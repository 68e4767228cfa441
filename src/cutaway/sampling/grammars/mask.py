"""Tokens that a row's grammar does not allow now get the logit -inf. Knows masks, no grammar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates, SamplerRow


class GrammarMask:
    """Leave the tokens of the row's mask and give the others the logit -inf.

    It comes first, so bias and penalties move allowed tokens alone.
    """

    name = "grammar"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row has no grammar."""
        return row.allowed is None

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        logits = candidates.logits
        packed = np.stack([np.frombuffer(row.allowed or b"", np.uint8) for row in rows])
        bits = np.unpackbits(packed, axis=1, count=logits.shape[-1], bitorder="little")
        return Candidates(logits.masked_fill(upload.bools(bits == 0, logits), float("-inf")))
