"""Guesses that are drawn from a row of a drafter's own, under the settings of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from cutaway.engine.drafters.drafter import Draft, Wish
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.rejection import propose
from cutaway.sampling.sampler import Sampled


def settings_of(wish: Wish, guesses: Sequence[int]) -> SamplerRow:
    """How the token behind some guesses is drawn: as plain decoding draws at that position."""
    said: Sequence[int] = ()
    prompt: Sequence[int] = ()
    if wish.params.has_penalties:
        prompt = wish.token_ids[: wish.num_prompt]
        said = [*wish.token_ids[wish.num_prompt :], *guesses]
    return SamplerRow(
        params=wish.params,
        seed=wish.seed,
        choice=wish.choice,
        position=len(wish.token_ids) + len(guesses),
        prompt_token_ids=prompt,
        output_token_ids=said,
        allowed=None if wish.allowed is None else wish.allowed(guesses),
    )


def add_guess(draft: Draft, wish: Wish, sampled: Sampled, logits: Tensor, row: SamplerRow) -> None:
    """Add the next guess to a draft.

    sampled: what the target's own random number draws from the row, which is no bad one. Where no
    seed decides, a number of its own draws, and the row is kept: shapes logits [V].
    """
    assert sampled.token_id is not None, "a bad row guesses nothing"
    if wish.draws_alone:
        proposal = propose(logits, row)
        draft.token_ids.append(proposal.token_id)
        draft.chances.append(proposal.odds.chance)
        draft.proposals.append(proposal)
    else:
        draft.token_ids.append(sampled.token_id)
        draft.chances.append(math.exp(sampled.score.logprob))
