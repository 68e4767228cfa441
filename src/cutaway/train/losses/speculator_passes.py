"""A speculator over known text as it will be over its own guesses: passes over its own states.

Pass 1 has the model's streams everywhere. Pass i has at each token what pass i - 1 gave for the one
before, as decoding has it i - 1 guesses behind the last token that the model computed: it sees keys
of pass 1 up to there, and of each pass since the one that stands for it.

Source: Li et al. 2025, arXiv 2503.01840, section 3.2 (training-time test).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.blocks.guessing_layer import Speculator, TurnedHeads
from cutaway.core.step import Step


def passes_over(
    module: Speculator, streams: Tensor, tokens: Tensor, *, num_passes: int
) -> list[Tensor]:
    """What each pass gives at each token of one sequence, as states.

    The first i - 1 rows of pass i stand for nothing that decoding has.

    streams: of the model, side by side [N, 3 D].   tokens: vectors of the token behind each [N, D].
    Returns: [N, D] each.
    """
    count = len(streams)
    step = Step.without_cache([torch.zeros(count, dtype=torch.int64)], device=streams.device)
    first = states = module.states_of(streams)
    made: list[TurnedHeads] = []
    given: list[Tensor] = []
    for number in range(num_passes):
        if number:
            states = torch.cat((first[:number], given[-1][number - 1 : -1]))
        both, residual = module.inputs(states, tokens)
        made.append(module.heads(both, step))
        update = module.attention.output(_attend(made, module.attention.softmax_scale).flatten(1))
        given.append(module.finish(residual, update, step))
    return given


def _attend(made: list[TurnedHeads], scale: float) -> Tensor:
    """The latest pass's queries over the keys that they see. Shapes: -> [N, H, C]."""
    query, first, behind = made[-1].query, made[0], made[1:]
    count, back = len(query), len(made) - 1
    places = torch.arange(count, device=query.device)
    hidden = places[None, :] > places[:, None] - back  # keys of pass 1 that are not seen
    scores = torch.einsum("qhc,khc->hqk", query, first.key) * scale
    scores = scores.masked_fill(hidden, -torch.inf)
    own: list[Tensor] = []
    for number, each in enumerate(behind, start=1):
        key = _later(each.key, back - number)  # that of the token so far before
        score = (query * key).sum(-1).T[..., None] * scale  # [H, N, 1]
        is_none = (places < back - number)[:, None]
        own.append(score.masked_fill(is_none, -torch.inf))
    weights = torch.cat((scores, *own), dim=-1).softmax(-1)
    mixed = torch.einsum("hqk,khc->qhc", weights[..., :count], first.value)
    for number, each in enumerate(behind, start=1):
        value = _later(each.value, back - number)
        mixed = mixed + weights[..., count + number - 1].T[..., None] * value
    return mixed


def _later(rows: Tensor, count: int) -> Tensor:
    """Each row where it stands so many places later; the first ones are zeros."""
    if not count:
        return rows
    return torch.cat((rows.new_zeros((min(count, len(rows)), *rows.shape[1:])), rows[:-count]))
