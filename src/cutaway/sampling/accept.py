"""Which draft tokens stand, by comparing them with what plain decoding draws."""

from __future__ import annotations

from collections.abc import Sequence


def accept(sampled_token_ids: Sequence[int], draft_token_ids: Sequence[int]) -> list[int]:
    """The tokens that a verification step emits, one to k + 1 of them.

    sampled_token_ids: of the k + 1 rows; row j was sampled with the settings, the history and
        the very random number that plain decoding uses at that position, as if the drafts
        before it had been accepted.
    draft_token_ids: the k tokens proposed, however they were found.

    Row j is valid when all drafts before it equal what was sampled; so the answer is that of
    plain decoding token for token, greedy or seeded, and a wrong draft costs only time. A draft
    token t is accepted exactly when the draw at its position gives t: with probability p(t).
    """
    assert len(sampled_token_ids) == len(draft_token_ids) + 1, (
        f"{len(draft_token_ids)} drafts need one row more, found {len(sampled_token_ids)}"
    )
    emitted: list[int] = []
    for sampled, draft in zip(sampled_token_ids, draft_token_ids, strict=False):
        emitted.append(sampled)
        if sampled != draft:
            return emitted
    emitted.append(sampled_token_ids[-1])
    return emitted
