"""Logits moved by the client, and tokens that must not come now."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.sampling import upload
from cutaway.sampling.candidates import Candidates, SamplerRow


class LogitBias:
    """Add the client's bias to single logits.

    Units: logits, from -100 to 100 (core/limits.py).
    """

    name = "logit_bias"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row has no bias."""
        return not row.params.logit_bias

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        logits = candidates.logits.clone()
        edits = [(r, *item) for r, row in enumerate(rows) for item in row.params.logit_bias.items()]
        vocab_size = logits.shape[-1]
        assert all(token < vocab_size for _, token, _ in edits), "the engine's door checks bias ids"
        row_ids, token_ids = upload.integers([[e[0] for e in edits], [e[1] for e in edits]], logits)
        logits[row_ids, token_ids] += upload.floats([e[2] for e in edits], logits)
        return Candidates(logits)


class Bans:
    """Give tokens that must not come now the logit -inf: the ends, below min_tokens."""

    name = "bans"

    def is_neutral(self, row: SamplerRow) -> bool:
        """Whether the row bans nothing."""
        return not row.banned_token_ids

    def __call__(self, candidates: Candidates, rows: Sequence[SamplerRow]) -> Candidates:
        logits = candidates.logits.clone()
        vocab_size = logits.shape[-1]
        banned = [
            (r, token)
            for r, row in enumerate(rows)
            for token in row.banned_token_ids
            if token < vocab_size
        ]
        row_ids, token_ids = upload.integers(
            [[b[0] for b in banned], [b[1] for b in banned]], logits
        )
        # A tensor on the device: for a number the host would wait.
        logits[row_ids, token_ids] = logits.new_full((), float("-inf"))
        return Candidates(logits)
