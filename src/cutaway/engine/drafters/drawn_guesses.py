"""Guesses that are drawn from a row of a drafter's own, under the settings of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from cutaway.engine.drafters.drafter import Draft, Wish
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.rejection import Proposal, propose
from cutaway.sampling.sampler import Sampler


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


def guess_from(sampler: Sampler, logits: Tensor, pairs: Sequence[tuple[Wish, Draft]]) -> list[bool]:
    """Draw the next guess of some answers, each from its row; which have one now.

    By the target's own random number where a seed decides; else by a number of its own, and the row
    is kept. A bad row guesses nothing. Shapes: logits [R, V].
    """
    rows = [settings_of(wish, draft.token_ids) for wish, draft in pairs]
    sampled = sampler.sample(logits, rows)
    gave = [each.token_id is not None for each in sampled]
    alone = [place for place, (wish, _) in enumerate(pairs) if gave[place] and wish.draws_alone]
    proposals: dict[int, Proposal] = {}
    if alone:
        own = logits if len(alone) == len(rows) else logits[alone]
        proposals = dict(zip(alone, propose(own, [rows[place] for place in alone]), strict=True))
    for place, ((_, draft), each) in enumerate(zip(pairs, sampled, strict=True)):
        if place in proposals:
            proposal = proposals[place]
            draft.token_ids.append(proposal.token_id)
            draft.chances.append(proposal.odds.chance)
            draft.proposals.append(proposal)
        elif each.token_id is not None:
            draft.token_ids.append(each.token_id)
            draft.chances.append(math.exp(each.score.logprob))
    return gave
